// The thread that runs, and how threads of a block meet. Threads are fibers that run until they wait for others.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

#include <cuda_runtime_api.h>

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace ef::emulated {

using Place = std::source_location;

/// What lanes do together: lanes[i] is what lane i brought, null where it takes no part.
using Act = void (*)(void* const* lanes);
/// Waits for all lanes of the mask that have not returned; the last to come does `act` for all. `mine` stays where it
/// is until then. What waits for lanes that never come ends the process with the positions of all threads.
void meet(uint32_t mask, const char* what, const Place& where, void* mine, Act act);

/// Waits for all threads of the block that have not returned. How many of them brought true.
int meet_block(const char* what, const Place& where, bool mine);

extern uint32_t lane_index;  ///< of the thread that runs
/// Lanes of the warp that have not returned.
uint32_t lanes_present();

/// The block's dynamic shared memory; all ones when a block begins.
void* dynamic_shared();

/// A copy to shared memory that is under way: until a wait that covers its group the destination is all ones. null:
/// zeros.
void copy_later(void* shared, const void* global, const Place& where);
void end_copy_group();
/// Until at most `pending` groups are under way.
void wait_for_copies(int pending);

/// In a launch whose blocks run together: this thread looks again later for what another block is to write.
void let_other_blocks();

/// A kernel that is launched early has to say in every block that it waits for those before it.
void wait_for_earlier();

/// Ends the process: the message, the kernel, and the thread that runs.
[[noreturn]] void stop(const char* message, const Place& where);

struct Launch {
  dim3 grid, block;
  size_t shared = 0;
  bool early = false, together = false;
  Place where;                ///< of the launch: names the kernel in messages
  std::function<void()> run;  ///< the kernel with its arguments, once a thread
};
/// Runs the launch or, where the stream is recorded, keeps it.
cudaError_t submit(Launch, cudaStream_t);
/// All threads of all blocks; one launch at a time.
void run(const Launch&);

}  // namespace ef::emulated

inline void __syncthreads(ef::emulated::Place where = ef::emulated::Place::current()) {
  ef::emulated::meet_block("__syncthreads", where, false);
}
inline int __syncthreads_count(int predicate, ef::emulated::Place where = ef::emulated::Place::current()) {
  return ef::emulated::meet_block("__syncthreads_count", where, predicate != 0);
}
inline int __syncthreads_or(int predicate, ef::emulated::Place where = ef::emulated::Place::current()) {
  return ef::emulated::meet_block("__syncthreads_or", where, predicate != 0) != 0;
}
inline int __syncthreads_and(int predicate, ef::emulated::Place where = ef::emulated::Place::current()) {
  return ef::emulated::meet_block("__syncthreads_and", where, predicate == 0) == 0;
}
