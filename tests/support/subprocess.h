// Runs a program as a user would: arguments, environment, standard input; its outputs and exit code come back.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace ef::testing {

struct Process {
  std::string program;
  std::vector<std::string> arguments;
  std::map<std::string, std::string>
      environment;  ///< beside PATH, HOME and what sanitizers read; nothing else is inherited
  std::string input;
};

struct ProcessResult {
  int exit_code = -1;  ///< 128 + signal if one ended it
  std::string out, err;
};

/// Waits for the end. Throws std::runtime_error if the program cannot be started.
ProcessResult run_process(const Process& process);

}  // namespace ef::testing
