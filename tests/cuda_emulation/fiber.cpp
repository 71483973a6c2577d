#include "tests/cuda_emulation/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define EF_FIBERS_UNDER_ASAN
#endif

#ifndef EF_FIBERS_BY_UCONTEXT
// Saves what a called function has to keep, and the stack pointer; goes on where the other stack stopped.
asm(R"(
.text
.type ef_emulated_change, @function
ef_emulated_change:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ef_emulated_change, .-ef_emulated_change
)");
extern "C" void ef_emulated_change(void** save, void* go_on) asm("ef_emulated_change");
#endif

namespace ef::emulated {
namespace {

#ifdef EF_FIBERS_UNDER_ASAN
constexpr size_t kStack = 256 << 10;
#else
constexpr size_t kStack = 128 << 10;
#endif

// Between two changes: who comes, who left.
Fiber *g_coming, *g_left;

}  // namespace

Fiber::Fiber(void (*entry)()) : entry_(entry) {
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  size_ = kStack;
  void* memory = mmap(nullptr, page + size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(static_cast<char*>(memory) + page, size_, PROT_READ | PROT_WRITE) != 0) {
    std::perror("emulated device: no memory for a thread's stack");
    std::abort();
  }
  memory_ = static_cast<char*>(memory);
  bottom_ = memory_ + page;
  // Stacks that begin at different places of a page do not compete for the same lines of the caches.
  static size_t made = 0;
  const size_t colour = made++ % 15 * 256;
#ifdef EF_FIBERS_BY_UCONTEXT
  getcontext(&context_);
  context_.uc_stack.ss_sp = memory_ + page;
  context_.uc_stack.ss_size = size_ - colour;
  makecontext(&context_, &Fiber::begin, 0);
#else
  // As ef_emulated_change leaves a stack: six registers, then where to go on. A called function finds its stack at an
  // odd multiple of eight.
  auto* top = reinterpret_cast<uint64_t*>(memory_ + page + size_ - colour) - 1;
  *top = 0;
  *--top = reinterpret_cast<uint64_t>(&Fiber::begin);
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
#endif
}

Fiber::~Fiber() {
  if (memory_) munmap(memory_, size_t(static_cast<const char*>(bottom_) - memory_) + size_);
}

void Fiber::change(Fiber& from, Fiber& to) {
  g_coming = &to, g_left = &from;
#ifdef EF_FIBERS_UNDER_ASAN
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.size_);
#endif
#ifdef EF_FIBERS_BY_UCONTEXT
  swapcontext(&from.context_, &to.context_);
#else
  ef_emulated_change(&from.stack_pointer_, to.stack_pointer_);
#endif
#ifdef EF_FIBERS_UNDER_ASAN
  // Tells where the stack that was left is: the first time, that of the thread that made no fiber of its own.
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(from.fake_stack_, &bottom, &size);
  if (!g_left->memory_) g_left->bottom_ = bottom, g_left->size_ = size;
#endif
}

void Fiber::begin() {
#ifdef EF_FIBERS_UNDER_ASAN
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (!g_left->memory_) g_left->bottom_ = bottom, g_left->size_ = size;
#endif
  g_coming->entry_();
}

}  // namespace ef::emulated
