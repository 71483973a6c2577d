// Replays for people and programs.
#pragma once
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "expertflow/replay/sweep.h"

namespace ef {

std::string replay_table(std::span<const SweepRow> rows);  ///< markdown
/// What the governor did in each run that had one, a paragraph a run; nothing if none had.
std::string governor_text(std::span<const SweepRow> rows);
nlohmann::ordered_json replay_json(std::span<const SweepRow> rows);
std::string replay_csv(std::span<const SweepRow> rows);
/// Bytes, waiting and S by budget: a row of panels for each trace, a line for each policy, predictor and distance, and
/// the clairvoyant bound beside the bytes.
std::string replay_svg(std::span<const SweepRow> rows);
/// "3", or "adaptive".
std::string distance_text(const SweepRow& row);

}  // namespace ef
