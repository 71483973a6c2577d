// Which experts a model's user has needed most, kept from one run to the next outside of the model's folder: what a
// cold cache is filled with. What is old fades.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/base/output_file.h"
#include "expertflow/engine/cached_experts.h"

namespace ef {

struct HotProfile {
  std::string fingerprint;                  ///< of the model (fingerprint.h)
  double tokens = 0;                        ///< that it stands for, faded
  std::vector<std::vector<double>> weight;  ///< rows that chose each expert, faded: [layer][expert]

  /// Adds a run of so many tokens; what was there before fades by half every kHalfLife tokens. An empty profile takes
  /// the shape of `use`.
  void add(const ExpertUse& use, uint64_t tokens);
  /// Those with any weight, the heaviest first; among equals the lower key.
  std::vector<ExpertKey> hottest() const;
  /// Of all its weight, that of the experts for which `near` holds: how many of the next accesses they serve, if these
  /// are like the ones before. 0 of an empty profile.
  double share_of(const std::function<bool(ExpertKey)>& near) const;
  static constexpr double kHalfLife = 65536;
};

/// user_cache_file("profiles/FINGERPRINT.json"); empty if nothing can be kept.
std::filesystem::path profile_file(const std::string& fingerprint);

/// What a file holds, if it is a sound profile of this model with experts[layer] experts a layer. Otherwise nothing,
/// and `why` says what was expected and found; empty if there is no such file.
std::optional<HotProfile> load_profile(const std::filesystem::path& file, const std::string& fingerprint,
                                       const std::vector<int>& experts, std::string& why);
/// Complete and published. DeviceError naming the file if that fails.
void save_profile(OutputFile& out, const HotProfile& profile);

}  // namespace ef
