#include "expertflow/backend/cuda/cuda_profile.h"

#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>

#include "expertflow/backend/cuda/cuda_stream.h"
#include "expertflow/backend/cuda/device/params.h"
#include "expertflow/base/errors.h"

namespace ef::cuda {
namespace {

void erase_all(std::string& text, std::string_view what) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos;) text.erase(at, what.size());
}

std::string kernel_name(const void* kernel) {
#if defined(CUDART_VERSION) && CUDART_VERSION >= 12030
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) == cudaSuccess && mangled) return plain_name(mangled);
  (void)cudaGetLastError();
#endif
  return fmt::format("kernel at {}", kernel);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

std::string plain_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                         std::free);
  std::string name = status == 0 && demangled ? demangled.get() : mangled;
  for (const char* part : {"void ", "ef::cuda::", "(anonymous namespace)::"}) erase_all(name, part);
  // Arguments are the last parentheses that nothing encloses.
  int depth = 0;
  for (size_t at = name.size(); at-- > 0;) {
    depth += name[at] == ')' ? 1 : name[at] == '(' ? -1 : 0;
    if (name[at] == '(' && depth == 0 && at > 0) return name.substr(0, at);
  }
  return name;
}

CudaProfile::~CudaProfile() {
  if (launch_watch() == this) launch_watch() = nullptr;
  let_go();
  (void)cudaStreamSynchronize(stream_);
  for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
}

void CudaProfile::begin() {
  EF_CHECK(!launch_watch(), DeviceError, "cuda: profile: another one is under way on this thread");
  launch_watch() = this;
  if (!measured_) measure_own();
}

StreamProfile CudaProfile::end() {
  launch_watch() = nullptr;
  const std::vector<Item> items = items_;
  const std::vector<double> seconds = item_seconds();
  StreamProfile out;
  out.added_seconds = added_, out.empty_seconds = empty_;
  std::vector<const void*> known;  // of out.entries
  for (size_t i = 0; i < items.size(); ++i) {
    const void* key = items[i].kernel ? items[i].kernel : static_cast<const void*>(items[i].copy);
    size_t at = size_t(std::find(known.begin(), known.end(), key) - known.begin());
    if (at == known.size()) {
      known.push_back(key);
      out.entries.push_back({items[i].kernel ? kernel_name(key) : items[i].copy, !items[i].kernel, 0, 0});
    }
    ++out.entries[at].count;
    out.entries[at].seconds += std::max(0.0, seconds[i] - added_);
  }
  return out;
}

void CudaProfile::wait(void* data) {
  // Queues are bounded: a step that does not fit into one must not be waited for.
  constexpr auto kLongest = std::chrono::milliseconds(20);
  Hold& hold = *static_cast<Hold*>(data);
  std::unique_lock lock(hold.mutex);
  hold.change.wait_for(lock, kLongest, [&] { return hold.over; });
}

cudaError_t CudaProfile::hold() {
  if (held_) return cudaSuccess;
  holds_.push_back(std::make_unique<Hold>());
  held_ = true;
  return cudaLaunchHostFunc(stream_, &CudaProfile::wait, holds_.back().get());
}

void CudaProfile::let_go() {
  if (!std::exchange(held_, false)) return;
  Hold& hold = *holds_.back();
  const std::lock_guard lock(hold.mutex);
  hold.over = true;
  hold.change.notify_all();
}

cudaError_t CudaProfile::mark(size_t& event) {
  if (used_ == events_.size()) {
    cudaEvent_t made = nullptr;
    if (const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDefault)) return error;
    events_.push_back(made);
  }
  event = used_++;
  return cudaEventRecord(events_[event], stream_);
}

cudaError_t CudaProfile::before(cudaStream_t stream) {
  if (stream != stream_ || last_ != kNone) return cudaSuccess;
  const cudaError_t error = hold();
  return error == cudaSuccess ? mark(last_) : error;
}

cudaError_t CudaProfile::after(const void* kernel, cudaStream_t stream) {
  if (stream != stream_) return cudaSuccess;
  items_.push_back({kernel, nullptr, last_, 0});
  const cudaError_t error = mark(last_);
  items_.back().to = last_;
  return error;
}

cudaError_t CudaProfile::after_copy(const char* name) {
  const cudaError_t error = after(nullptr, stream_);
  items_.back().copy = name;
  return error;
}

std::vector<double> CudaProfile::item_seconds() {
  let_go();
  check(cudaStreamSynchronize(stream_), "wait for a profile");
  std::vector<double> seconds;
  for (const Item& item : items_) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events_[item.from], events_[item.to]), "read an event");
    seconds.push_back(double(milliseconds) * 1e-3);
  }
  items_.clear();
  holds_.clear();
  used_ = 0, last_ = kNone;
  return seconds;
}

void CudaProfile::measure_own() {
  constexpr int kTries = 64;
  // Twice: the first time loads code.
  for (int pass = 0; pass < 2; ++pass) {
    check(before(stream_), "time nothing");
    for (int i = 0; i < kTries; ++i) check(after(nullptr, stream_), "time nothing");
    added_ = median(item_seconds());
    for (int i = 0; i < kTries; ++i) check(nothing(stream_), "time an empty kernel");
    empty_ = std::max(0.0, median(item_seconds()) - added_);
  }
  measured_ = true;
}

}  // namespace ef::cuda
