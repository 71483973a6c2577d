// The experts op: the groups become one table on the device, and three launches serve all of them: gate and up side by
// side, the activation, down. Nothing waits for the device.
#include <algorithm>
#include <cstring>

#include "expertflow/backend/cuda/cuda_ops.h"
#include "expertflow/backend/cuda/cuda_params.h"
#include "expertflow/base/errors.h"

namespace ef::cuda {
namespace {

// What one wave's launches read: two tables of groups, tiles over the order, and the order itself.
struct Tables {
  std::vector<Group> gate_up, down;
  std::vector<Tile> tiles;
  std::vector<int32_t> order;
  int most_rows = 0;

  void add(const ExpertView& e, std::span<const int32_t> assignments) {
    Group first, second;
    first.w[0] = weights_of(e.gate, e.gate_bias);
    first.w[1] = weights_of(e.up, e.up_bias);
    second.w[0] = weights_of(e.down, e.down_bias);
    gate_up.push_back(first);
    down.push_back(second);
    for (size_t i = 0; i < assignments.size(); i += kTileRows) {
      const int rows = int(std::min<size_t>(kTileRows, assignments.size() - i));
      tiles.push_back({int32_t(down.size() - 1), int32_t(order.size() + i), rows});
      most_rows = std::max(most_rows, rows);
    }
    order.insert(order.end(), assignments.begin(), assignments.end());
  }
};

// One allocation of staging for all tables of a wave.
class Packed {
 public:
  template <class T>
  uint64_t add(const std::vector<T>& values) {
    constexpr uint64_t kAlign = 16;
    const uint64_t at = (bytes_.size() + kAlign - 1) / kAlign * kAlign;
    bytes_.resize(at + values.size() * sizeof(T));
    std::memcpy(bytes_.data() + at, values.data(), values.size() * sizeof(T));
    return at;
  }
  const std::byte* send(CudaStream& stream) const { return stream.stage(bytes_.data(), bytes_.size()); }

 private:
  std::vector<std::byte> bytes_;
};

class Wave {
 public:
  Wave(CudaStream& stream, const ExpertsArgs& a, const ExpertView& kind) : stream_(stream), a_(a), kind_(kind) {}

  void run(const Tables& t) {
    if (t.order.empty()) return;
    Packed packed;
    const uint64_t gate_up = packed.add(t.gate_up), down = packed.add(t.down), tiles = packed.add(t.tiles),
                   order = packed.add(t.order);
    const std::byte* table = packed.send(stream_);
    const auto* device_order = reinterpret_cast<const int32_t*>(table + order);
    const int64_t rows = int64_t(t.order.size());
    float* hidden = stream_.scratch(uint64_t(rows) * 2 * uint64_t(a_.ffn));

    MatmulParams p;
    p.tiles = reinterpret_cast<const Tile*>(table + tiles);
    p.tile_count = int64_t(t.tiles.size());
    p.most_rows = t.most_rows;
    p.groups = reinterpret_cast<const Group*>(table + gate_up);
    p.n = a_.ffn, p.cols = a_.hidden;
    p.x_row = device_order, p.x_divisor = a_.top_k;
    p.x = a_.x, p.x_stride = a_.hidden;
    p.out = hidden, p.out_stride = 2 * a_.ffn;
    first_half(p);

    ActivationParams act;
    act.kind = Act(a_.activation.kind);
    act.alpha = a_.activation.alpha, act.limit = a_.activation.limit;
    act.rows = rows, act.width = a_.ffn, act.in_stride = act.out_stride = 2 * a_.ffn;
    act.gate = hidden, act.up = hidden + a_.ffn, act.out = hidden;
    check(activation(act, stream_.handle()), "experts: activation");

    p.format = Fmt(kind_.down.format);
    p.groups = reinterpret_cast<const Group*>(table + down);
    p.matrices = 1;
    p.n = a_.hidden, p.cols = a_.ffn;
    p.x_row = nullptr, p.x_divisor = 1;
    p.out_row = device_order;
    p.x = hidden, p.x_stride = 2 * a_.ffn;
    p.out = a_.out, p.out_stride = a_.hidden;
    check(matmul(p, stream_.handle()), "experts: down");
  }

 private:
  // Gate and up in one launch where they are of one format.
  void first_half(MatmulParams p) {
    p.format = Fmt(kind_.gate.format);
    p.matrices = kind_.gate.format == kind_.up.format ? 2 : 1;
    check(matmul(p, stream_.handle()), "experts: gate and up");
    if (p.matrices == 2) return;
    p.format = Fmt(kind_.up.format);
    p.first_matrix = 1;
    p.out += a_.ffn;
    check(matmul(p, stream_.handle()), "experts: up");
  }

  CudaStream& stream_;
  const ExpertsArgs& a_;
  const ExpertView& kind_;
};

void check_formats(const ExpertView& e, const ExpertView& kind) {
  EF_CHECK(e.gate.format == kind.gate.format && e.up.format == kind.up.format && e.down.format == kind.down.format,
           DeviceError, "cuda: experts: expected one format for all groups of a call, found {}, {}, {} and {}, {}, {}",
           format_info(kind.gate.format).name, format_info(kind.up.format).name, format_info(kind.down.format).name,
           format_info(e.gate.format).name, format_info(e.up.format).name, format_info(e.down.format).name);
}

}  // namespace

void experts(CudaStream& stream, const ExpertsArgs& a) {
  if (a.groups.empty()) return;
  const ExpertView& kind = a.groups.front().expert;
  const size_t most = size_t(std::max<uint64_t>(1, kWaveFloats / (2 * uint64_t(std::max<int64_t>(1, a.ffn)))));
  Wave wave(stream, a, kind);
  Tables tables;
  for (const ExpertGroup& group : a.groups) {
    check_formats(group.expert, kind);
    for (size_t first = 0; first < group.assignments.size();) {
      const size_t rows = std::min(group.assignments.size() - first, most - tables.order.size());
      tables.add(group.expert, group.assignments.subspan(first, rows));
      first += rows;
      if (tables.order.size() < most) continue;
      wave.run(tables);
      tables = {};
    }
  }
  wave.run(tables);
}

}  // namespace ef::cuda
