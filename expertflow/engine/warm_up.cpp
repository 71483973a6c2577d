// Cold and warm: what an engine takes from the runs before it, and leaves to the next.
#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/engine/engine.h"
#include "expertflow/engine/engine_tiers.h"
#include "expertflow/engine/fingerprint.h"
#include "expertflow/engine/hot_profile.h"
#include "expertflow/engine/sequence.h"

namespace ef {

namespace {

// Tokens that are computed to warm up: enough to touch what a short text does; fewer where nobody asked for it, as each
// may read its experts from a slow disk while clients wait for the server.
constexpr int kWarmTokens = 32, kFewTokens = 8;

std::vector<int> experts_by_layer(const ExpertCache& cache) {
  std::vector<int> experts;
  for (const auto& layer : cache.geometry().layers) experts.push_back(layer.experts);
  return experts;
}

// A profile's own folder is made where it is to lie; what lacks more is a mistyped path.
void check_place(const std::filesystem::path& file) {
  const std::filesystem::path above = std::filesystem::absolute(file).parent_path().parent_path();
  std::error_code ignored;
  EF_CHECK(std::filesystem::is_directory(above, ignored), ConfigError,
           "expert-profile: {}: expected a folder, found none at {}", file.string(), above.string());
}
}  // namespace

std::filesystem::path Engine::profile_path() const {
  if (options_.expert_profile == "off") return {};
  if (options_.expert_profile != "auto") return options_.expert_profile;
  return profile_file(model_fingerprint(*files_));
}

Engine::WarmUp Engine::warm_up(const std::function<void(uint64_t, uint64_t)>& progress, bool tokens_otherwise) {
  WarmUp result{"off"};
  int tokens = options_.warmup == "tokens" ? kWarmTokens : 0;
  if (!tiers_->tier || options_.warmup == "off") return result;
  const Duration begin = clock_.now();
  if (tokens == 0) {
    const std::filesystem::path file = profile_path();
    if (options_.expert_profile != "auto" && !file.empty()) check_place(file);
    std::string why;
    const auto profile = load_profile(file, model_fingerprint(*files_), experts_by_layer(tiers_->tier->cache()), why);
    if (!why.empty()) log_.warn("expert profile ignored: {}", why);
    if (profile) {
      result.how = "profile";
      result.experts = tiers_->tier->warm_up(profile->hottest(), progress);
      result.demand = profile->share_of([&](ExpertKey key) { return expert_is_near(key); });
    } else if (options_.warmup == "auto" && tokens_otherwise) {
      tokens = kFewTokens;
    } else {
      if (options_.warmup == "profile") log_.warn("warm-up: there is no profile of this model yet");
      return result;
    }
  }
  if (tokens > 0) {
    result.how = "tokens";
    Sequence sequence(*this, tokens);
    const uint64_t vocab = uint64_t(config().vocab);
    for (int i = 0; i < tokens && i < context_length(); ++i) {
      const TokenId token = TokenId(uint64_t(i + 1) * 2654435761u % vocab);
      sequence.feed_silently(std::span(&token, 1));
      if (progress && options_.warmup == "tokens") progress(uint64_t(i + 1), uint64_t(tokens));
    }
    result.experts = tiers_->tier->cache().stats().residents;
  }
  result.seconds = seconds(clock_.now() - begin);
  const std::string covers =
      result.demand > 0 ? fmt::format(", {:.1f} % of the accesses to be expected", 100 * result.demand) : "";
  log_.info("warm-up ({}): {} experts near after {:.2f} s{}", result.how, result.experts, result.seconds, covers);
  saved_use_ = tiers_->tier->experts().use();  // what warming up asked for is nobody's use
  rows_ = 0, latencies_.clear(), next_latency_ = 0;
  return result;
}

void Engine::save_profile() {
  if (!tiers_ || !tiers_->tier || rows_ == 0) return;
  const std::filesystem::path file = profile_path();
  if (file.empty()) return;
  ExpertUse use = tiers_->tier->experts().use();
  for (size_t l = 0; l < saved_use_.size(); ++l)
    for (size_t e = 0; e < saved_use_[l].size(); ++e) use[l][e] -= std::min(use[l][e], saved_use_[l][e]);
  std::string why;
  const std::string fingerprint = model_fingerprint(*files_);
  const bool ours = options_.expert_profile == "auto";
  try {
    std::error_code ignored;
    if (ours) std::filesystem::create_directories(file.parent_path(), ignored);
    if (file.has_parent_path()) std::filesystem::create_directory(file.parent_path(), ignored);
    OutputFile out(file, OutputFile::IfBusy::kWait);  // before it is read: runs of one model may end together
    HotProfile profile =
        load_profile(file, fingerprint, experts_by_layer(tiers_->tier->cache()), why).value_or(HotProfile{});
    if (!why.empty()) log_.warn("expert profile {}: {}", ours ? "replaced" : "not saved", why);
    if (!why.empty() && !ours) return;  // a file of the user's that is something else
    profile.fingerprint = fingerprint;
    profile.add(use, rows_);
    ef::save_profile(out, profile);
    log_.debug("expert profile of {:.0f} tokens saved to {}", profile.tokens, file.string());
    saved_use_ = tiers_->tier->experts().use();
    rows_ = 0;
  } catch (const DeviceError& error) {  // a run that went well does not fail for this
    log_.warn("expert profile not saved: {}", error.what());
  }
}

}  // namespace ef
