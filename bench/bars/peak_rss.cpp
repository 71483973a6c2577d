// Runs a command and reports the most memory it ever held, as the kernel counted it for the child: a measurement from
// outside.
//   peak_rss REPORT COMMAND [ARGUMENTS]   writes bytes to the file REPORT; the exit code is the command's
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s REPORT COMMAND [ARGUMENTS]\n", argv[0]);
    return 2;
  }
  const pid_t child = fork();
  if (child < 0) {
    std::perror("peak_rss: fork");
    return 2;
  }
  if (child == 0) {
    execvp(argv[2], argv + 2);
    std::fprintf(stderr, "peak_rss: %s: %s\n", argv[2], std::strerror(errno));
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  while (wait4(child, &status, 0, &usage) < 0) {
    if (errno != EINTR) {
      std::perror("peak_rss: wait4");
      return 2;
    }
  }
  std::FILE* report = std::fopen(argv[1], "w");
  if (!report) {
    std::perror(argv[1]);
    return 2;
  }
  std::fprintf(report, "%lld\n", static_cast<long long>(usage.ru_maxrss) * 1024);  // Linux counts in KiB
  if (std::fclose(report) != 0) return 2;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
