// expertflow: text on stdout, everything else on stderr; exit code by the kind of error.
#include <fcntl.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>
#include <string_view>

#include "apps/cli/commands.h"
#include "apps/cli/config_file.h"
#include "apps/cli/options_cli11.h"
#include "expertflow/base/errors.h"

namespace {

constexpr const char* kVersion = "expertflow 0.1.0";

struct ExitCodes {
  static constexpr int kOther = 1, kConfig = 2, kModel = 3, kDevice = 4, kRequest = 5;
};

int complain(const char* what, int code) {
  std::fprintf(stderr, "expertflow: error: %s\n", what);
  return code;
}

// CLI11 only says that a subcommand is missing.
bool known_command(std::string_view name) {
  for (const auto& command : ef::cli::kCommands)
    if (name == command.name) return true;
  return false;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app{
      "Runs Mixture-of-Experts models that are larger than the memory they run in.\n"
      "Every flag has an environment twin: --ctx-size is EXPERTFLOW_CTX_SIZE; the flag wins.",
      "expertflow"};
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  int exit_code = 0;
  for (const auto& command : ef::cli::kCommands) command.add(app, exit_code);
  if (argc > 1 && argv[1][0] != '-' && !known_command(argv[1])) {
    std::string known;
    for (const auto& command : ef::cli::kCommands) known += (known.empty() ? "" : ", ") + std::string(command.name);
    return complain(("unknown command \"" + std::string(argv[1]) + "\": expected one of " + known).c_str(),
                    ExitCodes::kConfig);
  }
  std::vector<std::string> arguments = ef::cli::with_long_names(argc, argv);
  if (const std::string config = ef::cli::config_path(arguments); !config.empty() && known_command(arguments[0])) {
    CLI::App& command = *app.get_subcommand(arguments[0]);
    if (command.get_option_no_throw("--config")) ef::cli::apply_config(command, config);
  }
  if (!arguments.empty()) ef::cli::apply_environment(app, arguments);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : ExitCodes::kConfig;
  }
  return exit_code;
}

}  // namespace

// Output that was not written is a failure, whatever the command thought of its success.
int finish(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return complain("standard output: the text could not be written", ExitCodes::kDevice);
}

// A closed descriptor would be taken by the next file that is opened, and get our messages.
void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) < 0) return;
}

int main(int argc, char** argv) {
  const bool stdout_open = fcntl(STDOUT_FILENO, F_GETFD) >= 0;
  open_standard_descriptors();
  try {
    const int code = finish(parse_and_run(argc, argv));
    return stdout_open || code != 0 ? code : complain("standard output is closed", ExitCodes::kDevice);
  } catch (const ef::ConfigError& e) {
    return complain(e.what(), ExitCodes::kConfig);
  } catch (const ef::ModelError& e) {
    return complain(e.what(), ExitCodes::kModel);
  } catch (const ef::DeviceError& e) {
    return complain(e.what(), ExitCodes::kDevice);
  } catch (const ef::RequestError& e) {
    return complain(e.what(), ExitCodes::kRequest);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", ExitCodes::kDevice);
  } catch (const std::exception& e) {
    return complain(e.what(), ExitCodes::kOther);
  }
}
