// A backend whose memory the host must not touch, without a device: the CPU's ops over one region that can be read and
// written while an op or a copy runs and at no other time. Code that follows a device pointer on the host dies at once.
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <mutex>
#include <stdexcept>

#include "expertflow/backend/cpu/cpu_backend.h"

namespace ef::testing {

class GuardedBackend final : public Backend {
 public:
  explicit GuardedBackend(std::unique_ptr<Backend> cpu) : cpu_(std::move(cpu)) {
    void* region = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) throw std::runtime_error("no address space for the guarded region");
    region_ = static_cast<std::byte*>(region);
  }
  ~GuardedBackend() override { munmap(region_, kBytes); }

  std::string_view name() const override { return "guarded"; }
  std::string description() const override { return cpu_->description(); }
  bool memory_is_host() const override { return false; }
  bool supports(Op op, Format format) const override { return cpu_->supports(op, format); }
  Buffer allocate_apart(uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (bytes > kBytes - used_) throw std::runtime_error("the guarded region is full");
    std::byte* at = region_ + used_;
    used_ += (bytes + 63) / 64 * 64 + 64;
    ++allocations_;
    return Buffer(this, at, bytes);
  }
  void release(std::byte*, uint64_t) noexcept override {}
  int allocations() const { return allocations_; }
  std::unique_ptr<Stream> make_stream() override { return cpu_->make_stream(); }

  void copy_to_device(void* to, const void* from, uint64_t n, Stream& s) override {
    open([&] { cpu_->copy_to_device(to, from, n, s); });
  }
  void copy_to_host(void* to, const void* from, uint64_t n, Stream& s) override {
    open([&] { cpu_->copy_to_host(to, from, n, s); });
  }
  void embed(Stream& s, const MatrixView& table, const TokenId* ids, int64_t n, float scale, float* out) override {
    open([&] { cpu_->embed(s, table, ids, n, scale, out); });
  }
  void norm(Stream& s, const NormArgs& a) override {
    open([&] { cpu_->norm(s, a); });
  }
  void linear(Stream& s, const LinearArgs& a) override {
    open([&] { cpu_->linear(s, a); });
  }
  void head_linear(Stream& s, const HeadLinearArgs& a) override {
    open([&] { cpu_->head_linear(s, a); });
  }
  void rope(Stream& s, const RopeArgs& a) override {
    open([&] { cpu_->rope(s, a); });
  }
  void store_kv(Stream& s, const StoreKvArgs& a) override {
    open([&] { cpu_->store_kv(s, a); });
  }
  void attention(Stream& s, const AttentionArgs& a) override {
    open([&] { cpu_->attention(s, a); });
  }
  void route(Stream& s, const RouterArgs& a) override {
    open([&] { cpu_->route(s, a); });
  }
  void activation(Stream& s, const ActivationArgs& a) override {
    open([&] { cpu_->activation(s, a); });
  }
  void experts(Stream& s, const ExpertsArgs& a) override {
    open([&] { cpu_->experts(s, a); });
  }
  void combine(Stream& s, const CombineArgs& a) override {
    open([&] { cpu_->combine(s, a); });
  }
  void add_scaled(Stream& s, float* x, const float* y, float factor, int64_t n) override {
    open([&] { cpu_->add_scaled(s, x, y, factor, n); });
  }
  void gated_add(Stream& s, float* x, const float* y, const float* gate, int64_t rows, int64_t width) override {
    open([&] { cpu_->gated_add(s, x, y, gate, rows, width); });
  }
  void scale(Stream& s, float* x, float factor, int64_t n) override {
    open([&] { cpu_->scale(s, x, factor, n); });
  }
  void clamp(Stream& s, float* x, float low, float high, int64_t n) override {
    open([&] { cpu_->clamp(s, x, low, high, n); });
  }
  void copy_2d(Stream& s, float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t width,
               int64_t rows) override {
    open([&] { cpu_->copy_2d(s, dst, dst_stride, src, src_stride, width, rows); });
  }

 private:
  static constexpr uint64_t kBytes = 256 << 20;
  template <class F>
  void open(const F& work) {
    const std::lock_guard lock(mutex_);  // experts are loaded by several threads
    mprotect(region_, kBytes, PROT_READ | PROT_WRITE);
    work();
    mprotect(region_, kBytes, PROT_NONE);
  }

  std::mutex mutex_;
  std::unique_ptr<Backend> cpu_;
  std::byte* region_ = nullptr;
  uint64_t used_ = 0;
  int allocations_ = 0;
};

}  // namespace ef::testing
