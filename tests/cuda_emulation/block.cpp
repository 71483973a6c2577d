// Runs launches: blocks one after another, or all of them where they wait for each other; a block's threads on fibers.
// A thread runs until it waits for others or returns; then another of its warp goes on, then one of another warp. Half
// of the blocks take their warps and lanes in descending order, so that a barrier which is missing shows whichever side
// needed it.
#include "tests/cuda_emulation/include/emulated/block.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/fiber.h"
#include "tests/cuda_emulation/shared_memory.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace ef::emulated {

uint32_t lane_index;

namespace {

constexpr uint32_t kMostThreads = 1024, kLanes = 32;

struct Copy {
  void* to;
  unsigned char bytes[16];
  uint32_t group;
};

struct Thread {
  uint3 index{};
  uint32_t number = 0;  // in the block; warp and lane follow
  Fiber* fiber = nullptr;
  // What it waits for, where it waits.
  const char* what = nullptr;
  Place where;
  uint32_t mask = 0;  // 0: the block's barrier
  void* mine = nullptr;
  Act act = nullptr;
  std::vector<Copy> copies;  // under way, oldest first
  uint32_t copy_group = 0;   // that copies join

  uint32_t warp() const { return number / kLanes; }
  uint32_t lane() const { return number % kLanes; }
};

struct Warp {
  // Sets of lanes.
  uint32_t fresh = 0;     // not begun
  uint32_t ready = 0;     // can go on
  uint32_t running = 0;   // one lane of the block at most
  uint32_t meeting = 0;   // wait in meet()
  uint32_t at_block = 0;  // wait in meet_block()
  uint32_t resting = 0;   // let other blocks go on
  uint32_t present() const { return fresh | ready | running | meeting | at_block | resting; }
};

struct Block {
  const Launch* launch = nullptr;
  uint64_t number = 0, count = 0;  // of the grid's blocks
  size_t place = 0;                // in g_blocks
  uint32_t threads = 0, warps = 0, present = 0;
  uint32_t at_barrier = 0, said_true = 0, barrier_result = 0;
  const char* barrier = nullptr;  // what the first to come called
  bool descending = false, waited_for_earlier = false;
  Warp warp[kMostThreads / kLanes];
  Thread thread[kMostThreads];
};

// Of a launch whose blocks run together all, else one for all in turn.
std::vector<std::unique_ptr<Block>> g_blocks;
size_t g_together = 1;       // blocks in use
Block* g_block = nullptr;    // that runs
Thread* g_thread = nullptr;  // that runs
uint64_t g_launches = 0;
Fiber g_host;
std::vector<std::unique_ptr<Fiber>> g_fibers;
std::vector<Fiber*> g_idle;

uint32_t bit_of(const Thread& t) { return 1u << t.lane(); }

std::string place_text(const Place& place) {
  const char* file = place.file_name();
  if (const char* name = std::strrchr(file, '/')) file = name + 1;
  return std::string(file) + ":" + std::to_string(place.line());
}

std::string kernel_text() {
  const Place& where = g_block->launch->where;
  return "the kernel launched at " + place_text(where) + " (" + where.function_name() + "), block (" +
         std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ") of " +
         std::to_string(g_block->threads) + " threads";
}

std::string position_of(const Thread& t) {
  const Warp& warp = g_block->warp[t.warp()];
  const uint32_t bit = bit_of(t);
  if (!(warp.present() & bit)) return "returned";
  if (warp.running & bit) return "runs";
  char mask[32] = "";
  if (t.mask) std::snprintf(mask, sizeof mask, ", mask 0x%08x,", t.mask);
  return std::string("waits in ") + t.what + mask + " at " + place_text(t.where);
}

// Threads side by side in one position share a line.
std::string positions() {
  std::string text;
  for (uint32_t first = 0; first < g_block->threads;) {
    const std::string position = position_of(g_block->thread[first]);
    uint32_t end = first + 1;
    while (end < g_block->threads && position_of(g_block->thread[end]) == position) ++end;
    text += "\n  threads " + std::to_string(first) + " to " + std::to_string(end - 1) + ": " + position;
    first = end;
  }
  return text;
}

[[noreturn]] void stop_with(const std::string& text) {
  std::fprintf(stderr, "emulated device: %s\n", text.c_str());
  std::fflush(stderr);
  std::abort();
}

void name_block() {
  const dim3& grid = g_block->launch->grid;
  const uint64_t number = g_block->number;
  blockIdx.x = uint32_t(number % grid.x);
  blockIdx.y = uint32_t(number / grid.x % grid.y);
  blockIdx.z = uint32_t(number / grid.x / grid.y);
}

void go_to_block(size_t place) {
  g_block = g_blocks[place].get();
  choose_shared(place);
  name_block();
}

void begin_block(uint64_t number) {
  const Launch& launch = *g_block->launch;
  g_block->number = number;
  name_block();
  g_block->present = g_block->threads;
  g_block->at_barrier = g_block->said_true = 0;
  g_block->waited_for_earlier = false;
  g_block->descending = (number + g_launches) % 2 == 1;
  for (uint32_t w = 0; w < g_block->warps; ++w) {
    const uint32_t lanes = std::min(kLanes, g_block->threads - w * kLanes);
    g_block->warp[w] = {};
    g_block->warp[w].fresh = lanes == kLanes ? 0xffffffffu : (1u << lanes) - 1;
  }
  fill_shared(launch.shared, number);
}

void end_block() {
  if (g_block->launch->early && !g_block->waited_for_earlier)
    stop_with("no thread called wait_for_earlier(), and the launch is an early one: " + kernel_text());
  if (!shared_end_intact(g_block->launch->shared))
    stop_with("a thread wrote behind the " + std::to_string(g_block->launch->shared) +
              " bytes of dynamic shared memory: " + kernel_text());
}

uint32_t first_lane(uint32_t lanes) {
  return uint32_t(g_block->descending ? 31 - std::countl_zero(lanes) : std::countr_zero(lanes));
}

// Where a block begins.
uint32_t first_warp() { return g_block->descending ? g_block->warps - 1 : 0; }

// The thread to run after one of the warp `from`: null where none can.
Thread* next_thread(uint32_t from) {
  uint32_t w = from;
  do {
    const Warp& warp = g_block->warp[w];
    if (const uint32_t lanes = warp.ready ? warp.ready : warp.fresh)
      return &g_block->thread[w * kLanes + first_lane(lanes)];
    if (g_block->descending)
      w = w == 0 ? g_block->warps - 1 : w - 1;
    else
      w = w + 1 == g_block->warps ? 0 : w + 1;
  } while (w != from);
  return nullptr;
}

// The same, of another block where this one has none. Who rests is woken where nobody else can go on.
Thread* next_thread_of_all(uint32_t from) {
  if (Thread* t = next_thread(from)) return t;
  if (!g_block->launch->together) return nullptr;
  const size_t here = g_block->place;
  for (size_t i = 1; i <= g_together; ++i) {
    Block& block = *g_blocks[(here + i) % g_together];
    if (block.present == 0) continue;
    for (uint32_t w = 0; w < block.warps; ++w) block.warp[w].ready |= std::exchange(block.warp[w].resting, 0);
    go_to_block(block.place);
    if (Thread* t = next_thread(first_warp())) return t;
  }
  go_to_block(here);
  return nullptr;
}

// Marks it as the one that runs. True if it begins.
bool take(Thread& t) {
  Warp& warp = g_block->warp[t.warp()];
  const bool begins = warp.fresh & bit_of(t);
  warp.fresh &= ~bit_of(t), warp.ready &= ~bit_of(t);
  warp.running = bit_of(t);
  g_thread = &t;
  threadIdx = t.index;
  lane_index = t.lane();
  return begins;
}

void run_threads();

Fiber& idle_fiber() {
  if (g_idle.empty()) {
    g_fibers.push_back(std::make_unique<Fiber>(&run_threads));
    return *g_fibers.back();
  }
  Fiber& fiber = *g_idle.back();
  g_idle.pop_back();
  return fiber;
}

// Runs others until the thread, which waits, can go on.
void give_way(Thread& t) {
  g_block->warp[t.warp()].running = 0;
  Thread* next = next_thread_of_all(t.warp());
  if (!next) stop_with("no thread can go on in " + kernel_text() + positions());
  if (take(*next)) next->fiber = &idle_fiber();
  Fiber::change(*t.fiber, *next->fiber);
}

// Lanes of one mask that wait for each other: done if all are there. `last` has come, or is null where another has
// returned.
bool try_meeting(uint32_t w, uint32_t mask, Thread* last) {
  Warp& warp = g_block->warp[w];
  const uint32_t wanted = mask & warp.present();
  const uint32_t there = warp.meeting | (last ? bit_of(*last) : 0u);
  if ((wanted & ~there) || wanted == 0) return false;
  void* lanes[kLanes] = {};
  const Thread* one = nullptr;
  for (uint32_t left = wanted; left; left &= left - 1) {
    const Thread& t = g_block->thread[w * kLanes + uint32_t(std::countr_zero(left))];
    if (t.mask != mask) return false;
    if (one && one->what != t.what && std::strcmp(one->what, t.what) != 0)
      stop_with("lanes of one warp meet in " + std::string(one->what) + " at " + place_text(one->where) + " and in " +
                t.what + " at " + place_text(t.where) + ": " + kernel_text() + positions());
    one = &t;
    lanes[t.lane()] = t.mine;
  }
  one->act(lanes);
  warp.meeting &= ~wanted;
  warp.ready |= wanted & ~(last ? bit_of(*last) : 0u);
  return true;
}

void try_barrier() {
  if (g_block->at_barrier == 0 || g_block->at_barrier < g_block->present) return;
  g_block->barrier_result = g_block->said_true;
  g_block->at_barrier = g_block->said_true = 0;
  for (uint32_t w = 0; w < g_block->warps; ++w) {
    g_block->warp[w].ready |= g_block->warp[w].at_block;
    g_block->warp[w].at_block = 0;
  }
}

void land(Thread& t, uint32_t groups_left) {
  size_t kept = 0;
  for (Copy& copy : t.copies) {
    if (t.copy_group - copy.group > groups_left)
      std::memcpy(copy.to, copy.bytes, sizeof copy.bytes);
    else
      t.copies[kept++] = copy;
  }
  t.copies.resize(kept);
}

// The thread has returned: nothing waits for it any more.
void leave(Thread& t) {
  land(t, 0), t.copies.clear();
  Warp& warp = g_block->warp[t.warp()];
  warp.running = 0;
  --g_block->present;
  for (uint32_t left = warp.meeting; left; left &= left - 1) {
    const Thread& other = g_block->thread[t.warp() * kLanes + uint32_t(std::countr_zero(left))];
    if ((warp.meeting & bit_of(other)) && (other.mask & bit_of(t))) try_meeting(t.warp(), other.mask, nullptr);
  }
  try_barrier();
}

// What every fiber does: runs the thread that was taken, then what comes next. A thread that has not begun needs no
// change of stacks.
void run_threads() {
  for (;;) {
    Thread& t = *g_thread;
    Fiber& self = *t.fiber;
    g_block->launch->run();
    leave(t);
    if (g_block->present == 0) {
      end_block();
      if (!g_block->launch->together && g_block->number + 1 < g_block->count) begin_block(g_block->number + 1);
    }
    Thread* next = next_thread_of_all(g_block->present < g_block->threads ? t.warp() : first_warp());
    if (!next && g_block->present > 0) stop_with("no thread can go on in " + kernel_text() + positions());
    if (next && take(*next)) {
      next->fiber = &self;
      continue;
    }
    g_idle.push_back(&self);
    Fiber::change(self, next ? *next->fiber : g_host);
  }
}

}  // namespace

void meet(uint32_t mask, const char* what, const Place& where, void* mine, Act act) {
  Thread& t = *g_thread;
  t.what = what, t.where = where, t.mask = mask, t.mine = mine, t.act = act;
  if (!(mask & bit_of(t))) stop((std::string("the mask of ") + what + " lacks the lane that calls it").c_str(), where);
  if (try_meeting(t.warp(), mask, &t)) return;
  g_block->warp[t.warp()].meeting |= bit_of(t);
  give_way(t);
}

int meet_block(const char* what, const Place& where, bool mine) {
  Thread& t = *g_thread;
  t.what = what, t.where = where, t.mask = 0;
  if (g_block->at_barrier == 0) g_block->barrier = what;
  if (std::strcmp(g_block->barrier, what) != 0)
    stop((std::string("threads of one block meet in ") + g_block->barrier + " and in " + what).c_str(), where);
  ++g_block->at_barrier;
  g_block->said_true += mine;
  g_block->warp[t.warp()].at_block |= bit_of(t);
  try_barrier();
  Warp& warp = g_block->warp[t.warp()];
  if (warp.ready & bit_of(t))
    warp.ready &= ~bit_of(t);
  else
    give_way(t);
  return int(g_block->barrier_result);
}

uint32_t lanes_present() { return g_block->warp[g_thread->warp()].present(); }

void copy_later(void* shared, const void* global, const Place& where) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16)
    stop("an address of a copy of 16 bytes is no multiple of 16", where);
  Copy copy{shared, {}, g_thread->copy_group};
  if (global) std::memcpy(copy.bytes, global, sizeof copy.bytes);
  std::memset(shared, 0xff, sizeof copy.bytes);
  g_thread->copies.push_back(copy);
}
void end_copy_group() { ++g_thread->copy_group; }
void wait_for_copies(int pending) { land(*g_thread, uint32_t(pending)); }

void let_other_blocks() {
  Thread& t = *g_thread;
  t.what = "let_other_blocks", t.mask = 0;
  g_block->warp[t.warp()].resting |= bit_of(t);
  give_way(t);
}

void wait_for_earlier() { g_block->waited_for_earlier = true; }

void stop(const char* message, const Place& where) {
  stop_with(std::string(message) + ": thread " + std::to_string(g_thread->number) + " at " + place_text(where) +
            " of " + kernel_text());
}

void run(const Launch& launch) {
  static std::mutex one_at_a_time;
  std::lock_guard lock(one_at_a_time);
  blockDim = launch.block, gridDim = launch.grid;
  const uint32_t threads = launch.block.x * launch.block.y * launch.block.z;
  const uint64_t count = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
  ++g_launches;
  g_together = launch.together ? size_t(count) : 1;
  while (g_blocks.size() < g_together) g_blocks.push_back(std::make_unique<Block>());
  for (size_t b = g_together; b-- > 0;) {
    Block& block = *g_blocks[b];
    block.launch = &launch, block.place = b, block.count = count;
    block.threads = threads, block.warps = (threads + kLanes - 1) / kLanes;
    for (uint32_t i = 0; i < threads; ++i) {
      Thread& t = block.thread[i];
      t.number = i;
      t.index = {i % launch.block.x, i / launch.block.x % launch.block.y, i / launch.block.x / launch.block.y};
      t.copy_group = 0;
    }
    g_block = &block, choose_shared(b);
    begin_block(b);
  }
  Thread& first = *next_thread(first_warp());
  take(first);
  first.fiber = &idle_fiber();
  Fiber::change(g_host, *first.fiber);
  g_thread = nullptr;
}

}  // namespace ef::emulated
