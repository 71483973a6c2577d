// Stacks to run on, and the change from one to another: some ten nanoseconds where there is assembly for it.
#pragma once
#include <cstddef>
#if !defined(__x86_64__) || defined(EF_EMULATED_UCONTEXT)
#include <ucontext.h>
#define EF_FIBERS_BY_UCONTEXT
#endif

namespace ef::emulated {

/// A stack, or with no entry the thread that makes it. Not moved, not destroyed while anything is on its stack.
class Fiber {
 public:
  Fiber() = default;
  /// `entry` runs at the first change to this fiber and never returns.
  explicit Fiber(void (*entry)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// From `from`, which runs, to `to`; returns when something changes to `from` again.
  static void change(Fiber& from, Fiber& to);

 private:
  static void begin();

  void (*entry_)() = nullptr;
  char* memory_ = nullptr;  // a guard page, then the stack
  const void* bottom_ = nullptr;
  size_t size_ = 0;
  void* fake_stack_ = nullptr;  // the address sanitizer's
#ifdef EF_FIBERS_BY_UCONTEXT
  ucontext_t context_{};
#else
  void* stack_pointer_ = nullptr;
#endif
};

}  // namespace ef::emulated
