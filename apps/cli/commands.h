// The verbs of the command line. Each adds its subcommand with its options; the callback runs it and sets the exit
// code.
#pragma once
#include <CLI/CLI.hpp>

namespace ef::cli {

struct Command {
  const char* name;
  void (*add)(CLI::App& app, int& exit_code);
};

void add_run(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_perplexity(CLI::App& app, int& exit_code);
void add_widen(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_convert(CLI::App& app, int& exit_code);
void add_quantize(CLI::App& app, int& exit_code);
void add_pull(CLI::App& app, int& exit_code);
void add_pack(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_train_predictor(CLI::App& app, int& exit_code);

/// `bench serve`.
void add_bench_serve(CLI::App& bench, int& exit_code);

/// The one table of commands.
inline constexpr Command kCommands[] = {
    {"run", add_run},         {"serve", add_serve},     {"bench", add_bench},
    {"inspect", add_inspect}, {"verify", add_verify},   {"perplexity", add_perplexity},
    {"widen", add_widen},     {"convert", add_convert}, {"quantize", add_quantize},
    {"pull", add_pull},       {"pack", add_pack},       {"train-predictor", add_train_predictor},
    {"replay", add_replay}};

}  // namespace ef::cli
