#include "apps/cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace ef::cli {

namespace {
// A signal handler reaches nothing but statics; lock-free atomics are what it may touch.
std::atomic<int> presses{1};

void on_interrupt(int) {
  if (presses.fetch_add(1) == 0) return;
  constexpr int kInterruptedExit = 130;
  _exit(kInterruptedExit);
}
}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

void arm_interrupt() { presses = 0; }
bool interrupted() { return presses > 0; }

}  // namespace ef::cli
