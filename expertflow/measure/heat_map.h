// A matrix of numbers as a picture: one cell a number, rows labelled, dark for little and bright for much.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace ef {

struct HeatMap {
  std::string title, row_name = "layer", column_name = "expert", value_name;
  std::vector<int> rows;                    ///< labels
  std::vector<std::vector<double>> values;  ///< [rows][columns]; rows may differ in length; not negative
};

/// A standalone SVG document; every cell says its value when pointed at.
std::string heat_map_svg(const HeatMap& map);

/// Whether this build writes PNG (libpng was found).
bool can_write_png();
/// The cells alone, a block of pixels each. ConfigError if the build has no PNG; DeviceError if the file cannot be
/// written.
void write_heat_map_png(const HeatMap& map, const std::filesystem::path& path);

/// By the file's extension: .svg or .png; ConfigError otherwise.
void write_heat_map(const HeatMap& map, const std::filesystem::path& path);

}  // namespace ef
