#include "tests/support/subprocess.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tests/support/temp_folder.h"

namespace ef::testing {

namespace {

std::string whole(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

// Files rather than pipes: nothing can block, however much is written.
ProcessResult run_process(const Process& process) {
  const TempFolder folder;
  const std::string in = folder.path / "in", out = folder.path / "out", err = folder.path / "err";
  std::ofstream(in, std::ios::binary) << process.input;

  std::vector<std::string> arguments = {process.program}, environment;
  arguments.insert(arguments.end(), process.arguments.begin(), process.arguments.end());
  for (const char* name :
       {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"})
    if (const char* value = std::getenv(name)) environment.push_back(std::string(name) + "=" + value);
  for (const auto& [name, value] : process.environment) environment.push_back(name + "=" + value);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, in.c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t child = 0;
  const int failed = posix_spawn(&child, process.program.c_str(), &files, nullptr, pointers(arguments).data(),
                                 pointers(environment).data());
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) throw std::runtime_error("cannot start " + process.program);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), whole(out), whole(err)};
}

}  // namespace ef::testing
