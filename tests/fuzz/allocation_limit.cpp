// Counts what operator new holds and ends the program above the limit: a header of a few bytes must never ask for more.
#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

constexpr size_t kLimit = 256u << 20;
std::atomic<size_t> held{0};

void* take(size_t size) noexcept {
  if (size > kLimit || held.load() + size > kLimit) {
    std::fprintf(stderr, "finding: an allocation of %zu bytes while %zu are held (limit %zu)\n", size, held.load(),
                 kLimit);
    std::abort();
  }
  void* p = std::malloc(size == 0 ? 1 : size);
  if (p != nullptr) held += ::malloc_usable_size(p);
  return p;
}

void* take_or_throw(size_t size) {
  void* p = take(size);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

void give(void* p) noexcept {
  if (p == nullptr) return;
  held -= ::malloc_usable_size(p);
  std::free(p);
}

}  // namespace

void* operator new(size_t size) { return take_or_throw(size); }
void* operator new[](size_t size) { return take_or_throw(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return take(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return take(size); }
void operator delete(void* p) noexcept { give(p); }
void operator delete[](void* p) noexcept { give(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { give(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { give(p); }
void operator delete(void* p, size_t) noexcept { give(p); }
void operator delete[](void* p, size_t) noexcept { give(p); }
