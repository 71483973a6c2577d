#include "expertflow/measure/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "expertflow/base/errors.h"
#include "expertflow/base/output_file.h"

#ifdef EF_WITH_PNG
#include <png.h>
#endif

namespace ef {

namespace {

using Colour = std::array<uint8_t, 3>;

// Black, purple, orange, pale yellow: even steps of brightness, so that it reads without colour too.
Colour colour_of(double share) {
  static constexpr std::array<Colour, 5> kStops = {
      {{0, 0, 4}, {81, 18, 124}, {183, 55, 121}, {252, 137, 97}, {252, 253, 191}}};
  const double at = std::clamp(share, 0., 1.) * double(kStops.size() - 1);
  const auto below = std::min(size_t(at), kStops.size() - 2);
  const double part = at - double(below);
  Colour out;
  for (size_t i = 0; i < 3; ++i)
    out[i] = uint8_t(std::lround(double(kStops[below][i]) * (1 - part) + double(kStops[below + 1][i]) * part));
  return out;
}

double most_of(const HeatMap& map) {
  double most = 0;
  for (const auto& row : map.values)
    for (const double v : row) most = std::max(most, v);
  return most > 0 ? most : 1;
}

size_t columns_of(const HeatMap& map) {
  size_t columns = 0;
  for (const auto& row : map.values) columns = std::max(columns, row.size());
  return columns;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// Pixels of a cell: larger where there are few.
int cell_size(size_t columns) { return columns <= 64 ? 14 : columns <= 160 ? 8 : 4; }

}  // namespace

std::string heat_map_svg(const HeatMap& map) {
  constexpr int kLeft = 48, kTop = 44, kBottom = 28;
  const int cell = cell_size(columns_of(map)), rows = int(map.values.size()), columns = int(columns_of(map));
  const double most = most_of(map);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"16\" font-size=\"13\">{3}</text>\n<text x=\"{2}\" y=\"{4}\">{5} from left to right; "
      "brightest: "
      "{6:.4g} {7}</text>\n",
      kLeft + std::max(columns * cell, 420) + 8, kTop + rows * cell + kBottom, kLeft, escaped(map.title), kTop - 8,
      escaped(map.column_name), most, escaped(map.value_name));
  for (int r = 0; r < rows; ++r) {
    const int label = size_t(r) < map.rows.size() ? map.rows[size_t(r)] : r;
    if (cell >= 8 || r % 4 == 0)
      svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 4,
                         kTop + r * cell + cell / 2 + 4, label);
    const auto& row = map.values[size_t(r)];
    for (size_t c = 0; c < row.size(); ++c) {
      const Colour colour = colour_of(row[c] / most);
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#{:02x}{:02x}{:02x}\"><title>{} {}, {} {}: {:.4g} "
          "{}</title></rect>\n",
          kLeft + int(c) * cell, kTop + r * cell, cell, cell, colour[0], colour[1], colour[2], escaped(map.row_name),
          label, escaped(map.column_name), c, row[c], escaped(map.value_name));
    }
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\">{} from top to bottom</text>\n</svg>\n", kLeft, kTop + rows * cell + 18,
                     escaped(map.row_name));
  return svg;
}

bool can_write_png() {
#ifdef EF_WITH_PNG
  return true;
#else
  return false;
#endif
}

void write_heat_map_png(const HeatMap& map, const std::filesystem::path& path) {
#ifdef EF_WITH_PNG
  const int cell = cell_size(columns_of(map));
  const size_t rows = map.values.size(), columns = columns_of(map), width = columns * size_t(cell);
  EF_CHECK(rows > 0 && columns > 0, ConfigError, "{}: a picture of nothing: no layer has experts", path.string());
  const double most = most_of(map);
  std::vector<uint8_t> pixels;
  for (const auto& row : map.values) {
    std::vector<uint8_t> line;
    for (size_t c = 0; c < columns; ++c) {
      const Colour colour = c < row.size() ? colour_of(row[c] / most) : Colour{255, 255, 255};
      for (int i = 0; i < cell; ++i) line.insert(line.end(), colour.begin(), colour.end());
    }
    for (int i = 0; i < cell; ++i) pixels.insert(pixels.end(), line.begin(), line.end());
  }
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = png_uint_32(width);
  image.height = png_uint_32(rows * size_t(cell));
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = 0;
  const auto check = [&](int done) {
    EF_CHECK(done != 0, DeviceError, "{}: the picture could not be made: {}", path.string(), image.message);
  };
  check(png_image_write_to_memory(&image, nullptr, &bytes, 0, pixels.data(), 0, nullptr));
  std::vector<std::byte> file(bytes);
  check(png_image_write_to_memory(&image, file.data(), &bytes, 0, pixels.data(), 0, nullptr));
  OutputFile out(path);
  out.write(0, std::span(file).first(bytes));
  out.complete(bytes);
  out.publish();
#else
  (void)map;
  fail<ConfigError>("{}: this program was built without libpng; write a .svg", path.string());
#endif
}

void write_heat_map(const HeatMap& map, const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  EF_CHECK(extension == ".svg" || extension == ".png", ConfigError, "{}: expected a name that ends in .svg or .png",
           path.string());
  if (extension == ".png") return write_heat_map_png(map, path);
  const std::string svg = heat_map_svg(map);
  OutputFile out(path);
  out.write(0, std::as_bytes(std::span(svg)));
  out.complete(svg.size());
  out.publish();
}

}  // namespace ef
