// Faults of the emulated device, for tests of what follows one.
#pragma once
#include <cuda_runtime_api.h>

namespace ef::emulated {

enum class Call : unsigned char { kLaunch, kCopy, kGraphLaunch, kSynchronize };

/// What follows a call that failed: nothing, or every later call of these kinds fails alike, as without a context.
enum class Fault : unsigned char { kPasses, kStays };

/// The nth call of this kind from now on (1: the next) fails with the error and does nothing. A later call of this
/// function takes its place.
void fail_call(Call call, int nth, cudaError_t error, Fault fault = Fault::kPasses);
/// No call fails any more.
void mend();
/// Whether the fault that was asked for last has come.
bool fault_came();

}  // namespace ef::emulated
