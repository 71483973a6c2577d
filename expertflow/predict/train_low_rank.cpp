#ifdef EF_WITH_EIGEN
#include "expertflow/predict/train_low_rank.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <mutex>
#include <random>

#include "expertflow/base/errors.h"
#include "expertflow/predict/low_rank.h"
#include "expertflow/predict/slope_fit.h"

namespace ef {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Row = Eigen::RowVectorXf;
using Eigen::Index;

constexpr Index kChunk = 1024, kBatch = 256;
constexpr int kEpochs = 4;
constexpr float kRate = 2e-3f;    // of Adam at first; falls to nothing
constexpr size_t kJudgedOf = 16;  // one of so many samples judges, the last ones

std::vector<LayerId> low_rank_targets(const std::vector<HostRouter>& routers, LayerId layer) {
  std::vector<LayerId> targets;
  for (LayerId t = layer + 1; t < LayerId(routers.size()) && t - layer <= kLowRankHorizon; ++t)
    if (!routers[size_t(t)].weight.empty()) targets.push_back(t);
  return targets;
}

// Everything that is learned of one layer, or its gradient, or Adam's moments.
struct Weights {
  Matrix projection, mix, readout;  // [rank, hidden], [units, rank], [targets * experts, rank + units]
  Row shift, mix_bias, bias;        // [rank], [units], [targets * experts]

  template <class F>
  static void each(F&& f, Weights& a, Weights& b, Weights& c, Weights& d) {
    f(a.projection, b.projection, c.projection, d.projection);
    f(a.mix, b.mix, c.mix, d.mix);
    f(a.readout, b.readout, c.readout, d.readout);
    f(a.shift, b.shift, c.shift, d.shift);
    f(a.mix_bias, b.mix_bias, c.mix_bias, d.mix_bias);
    f(a.bias, b.bias, c.bias, d.bias);
  }
  Weights zeros() const {
    Weights z = *this;
    each([](auto& m, auto&, auto&, auto&) { m.setZero(); }, z, z, z, z);
    return z;
  }
};

// One source layer.
class LowRankTraining {
 public:
  LowRankTraining(const StepSamples& samples, const RouterConfig& router, const std::vector<HostRouter>& routers,
                  LayerId layer, LowRankSize size)
      : s_(samples), router_(router), routers_(routers), layer_(layer) {
    targets_ = low_rank_targets(routers, layer);
    outputs_ = Index(targets_.size()) * s_.experts;
    rank_ = std::min<Index>(size.rank, outputs_), units_ = size.units;
    trained_ = Index(s_.count) - Index(s_.count / kJudgedOf);
  }

  void run() {
    start();
    Weights best = w_;
    double least = loss(trained_, Index(s_.count));
    Weights first = w_.zeros(), second = w_.zeros();
    std::mt19937_64 random(uint64_t(layer_) + 1);
    std::vector<Index> order(static_cast<size_t>(trained_));
    for (size_t i = 0; i < order.size(); ++i) order[i] = Index(i);
    const Index steps = kEpochs * std::max<Index>(1, trained_ / kBatch);
    Index step = 0;
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
      for (Index at = 0; at + kBatch <= trained_ && step < steps; at += kBatch)
        descend(std::span(order).subspan(size_t(at), size_t(kBatch)), ++step, steps, first, second);
      // What does not help on samples that were left out is not kept: little text may be learned by heart.
      if (const double now = loss(trained_, Index(s_.count)); now < least) least = now, best = w_;
    }
    w_ = std::move(best);
  }

  void store(TrainedPredictor& out) const {
    const auto put = [&](const std::string& name, const auto& m) {
      const Matrix rows = m;
      out.tensors[name] = {rows.rows(), rows.cols(), {rows.data(), rows.data() + rows.size()}};
    };
    put(low_rank_name(layer_, "projection"), w_.projection);
    put(low_rank_name(layer_, "shift"), w_.shift);
    put(low_rank_name(layer_, "mix"), w_.mix);
    put(low_rank_name(layer_, "mix_bias"), w_.mix_bias);
    for (size_t i = 0; i < targets_.size(); ++i) {
      const Index at = Index(i) * s_.experts;
      put(head_name(kLowRank, layer_, targets_[i], "weight"), w_.readout.middleRows(at, s_.experts));
      Row bias(s_.experts + 1);
      bias << w_.bias.segment(at, s_.experts), slope(i);
      put(head_name(kLowRank, layer_, targets_[i], "bias"), bias);
    }
  }

 private:
  // x [n, hidden], y [n, targets * experts]. What all experts of a row have in common does not rank them; it is taken
  // off, unless a selection bias is added to their scores.
  void read(Index row, size_t sample, Matrix& x, Matrix& y) const {
    const size_t layers = size_t(s_.layers), hidden = size_t(s_.hidden), experts = size_t(s_.experts);
    const uint16_t* from = &s_.routed[(sample * layers + size_t(layer_)) * hidden];
    for (size_t k = 0; k < hidden; ++k) x(row, Index(k)) = from_bf16(from[k]);
    for (size_t t = 0; t < targets_.size(); ++t) {
      const Eigen::Map<const Row> logits(&s_.logits[(sample * layers + size_t(targets_[t])) * experts], s_.experts);
      auto to = y.row(row).segment(Index(t * experts), s_.experts);
      to = logits;
      if (routers_[size_t(targets_[t])].selection_bias.empty()) to.array() -= logits.mean();
    }
  }
  void expand(Index begin, Index n, Matrix& x, Matrix& y) const {
    x.resize(n, s_.hidden), y.resize(n, outputs_);
    for (Index r = 0; r < n; ++r) read(r, size_t(begin + r), x, y);
  }

  // Reduced-rank regression: the ridge solution, seen through the directions that its answers vary in most.
  void start() {
    const Index hidden = s_.hidden, width = hidden + outputs_;
    Eigen::MatrixXd gram = Eigen::MatrixXd::Zero(width, width);
    Eigen::RowVectorXd sum = Eigen::RowVectorXd::Zero(width);
    Matrix x, y, both;
    for (Index at = 0; at < trained_; at += kChunk) {
      expand(at, std::min(kChunk, trained_ - at), x, y);
      both.resize(x.rows(), width);
      both << x, y;
      Eigen::MatrixXf part = Eigen::MatrixXf::Zero(width, width);
      part.selfadjointView<Eigen::Lower>().rankUpdate(both.transpose());
      gram.triangularView<Eigen::Lower>() += part.cast<double>();
      sum += both.cast<double>().colwise().sum();
    }
    gram.triangularView<Eigen::StrictlyUpper>() = gram.transpose();
    const double n = double(trained_);
    const Eigen::RowVectorXd mean = sum / n;
    gram.noalias() -= n * mean.transpose() * mean;
    Eigen::MatrixXd xx = gram.topLeftCorner(hidden, hidden);
    Eigen::MatrixXd ridged = xx;
    ridged.diagonal().array() += n * (1e-4 + 0.02 * double(hidden) / n);
    const Eigen::MatrixXd solution = ridged.llt().solve(gram.topRightCorner(hidden, outputs_));
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> eigen(solution.transpose() * xx * solution / n);
    // Ascending: the last ones are the largest. z is scaled to unit variance.
    const Eigen::MatrixXd directions = eigen.eigenvectors().rightCols(rank_);
    const Eigen::VectorXd deviation = eigen.eigenvalues().tail(rank_).cwiseMax(1e-8).cwiseSqrt();
    const Eigen::MatrixXd projection =
        deviation.cwiseInverse().asDiagonal() * (solution * directions).transpose();  // [rank, hidden]
    w_.projection = projection.cast<float>();
    w_.shift = -(projection * mean.head(hidden).transpose()).transpose().cast<float>();
    w_.bias = mean.tail(outputs_).cast<float>();
    w_.readout = Matrix::Zero(outputs_, rank_ + units_);
    w_.readout.leftCols(rank_) = (directions * deviation.asDiagonal()).cast<float>();
    // The units start with nothing to say.
    std::mt19937_64 random(uint64_t(layer_) + 1);
    const float scale = 2.f / std::sqrt(float(rank_));
    w_.mix.resize(units_, rank_), w_.mix_bias = Row::Zero(units_);
    for (Index i = 0; i < w_.mix.size(); ++i)
      w_.mix.data()[i] = scale * (float(random() >> 40) / float(1 << 23) - 1);  // uniform, [-scale, scale)
    spread_ = float(1 / std::max(1e-12, gram.bottomRightCorner(outputs_, outputs_).trace() / n / double(outputs_)));
  }

  struct Pass {
    Matrix z, pre, gate, features, out;
  };
  void forward(const Matrix& x, Pass& p) const {
    p.z.noalias() = x * w_.projection.transpose();
    p.z.rowwise() += w_.shift;
    p.pre.noalias() = p.z * w_.mix.transpose();
    p.pre.rowwise() += w_.mix_bias;
    p.gate = (1.f + (-p.pre.array()).exp()).inverse();
    p.features.resize(x.rows(), rank_ + units_);
    p.features << p.z, p.pre.cwiseProduct(p.gate);
    p.out.noalias() = p.features * w_.readout.transpose();
    p.out.rowwise() += w_.bias;
  }

  double loss(Index begin, Index end) const {
    Matrix x, y;
    Pass p;
    double sum = 0;
    for (Index at = begin; at < end; at += kChunk) {
      expand(at, std::min(kChunk, end - at), x, y);
      forward(x, p);
      sum += double((p.out - y).squaredNorm());
    }
    return sum;
  }

  // One step of Adam (arXiv 1412.6980) on the squared error of logits.
  void descend(std::span<const Index> batch, Index step, Index steps, Weights& first, Weights& second) {
    x_.resize(Index(batch.size()), s_.hidden), y_.resize(Index(batch.size()), outputs_);
    for (size_t r = 0; r < batch.size(); ++r) read(Index(r), size_t(batch[r]), x_, y_);
    forward(x_, p_);
    const Matrix error = (p_.out - y_) * (spread_ / float(batch.size()));
    Weights g;
    g.readout.noalias() = error.transpose() * p_.features;
    g.bias = error.colwise().sum();
    const Matrix back = error * w_.readout;
    Matrix pre = back.rightCols(units_);
    pre.array() *= p_.gate.array() * (1.f + p_.pre.array() * (1.f - p_.gate.array()));
    g.mix.noalias() = pre.transpose() * p_.z;
    g.mix_bias = pre.colwise().sum();
    const Matrix z = back.leftCols(rank_) + pre * w_.mix;
    g.projection.noalias() = z.transpose() * x_;
    g.shift = z.colwise().sum();
    constexpr float kFirst = 0.9f, kSecond = 0.999f, kSmall = 1e-8f;
    const float rate = kRate * (1 - float(step - 1) / float(steps)) * std::sqrt(1 - std::pow(kSecond, float(step))) /
                       (1 - std::pow(kFirst, float(step)));
    Weights::each(
        [&](auto& w, auto& grad, auto& m, auto& v) {
          m = kFirst * m + (1 - kFirst) * grad;
          v = kSecond * v + (1 - kSecond) * grad.cwiseAbs2();
          w.array() -= rate * m.array() / (v.array().sqrt() + kSmall);
        },
        w_, g, first, second);
  }

  float slope(size_t target) const {
    const HostRouter& router = routers_[size_t(targets_[target])];
    SlopeFit fit(router_);
    Matrix x, y;
    Pass p;
    constexpr Index kPieces = 16, kPiece = 64;
    const Index count = Index(s_.count);
    for (Index piece = 0; piece < kPieces; ++piece) {
      expand(std::max<Index>(0, count - kPiece) * piece / (kPieces - 1), std::min(kPiece, count), x, y);
      forward(x, p);
      for (Index r = 0; r < x.rows(); ++r)
        fit.add(&p.out(r, Index(target) * s_.experts), &y(r, Index(target) * s_.experts),
                router.selection_bias.empty() ? nullptr : router.selection_bias.data());
    }
    return fit.best();
  }

  const StepSamples& s_;
  const RouterConfig& router_;
  const std::vector<HostRouter>& routers_;
  const LayerId layer_;
  std::vector<LayerId> targets_;
  Index outputs_ = 0, rank_ = 0, units_ = 0, trained_ = 0;
  float spread_ = 1;  // of the error: one over the logits' variance
  Weights w_;
  Matrix x_, y_;
  Pass p_;
};

}  // namespace

std::vector<LayerId> low_rank_sources(const StepSamples& samples, const std::vector<HostRouter>& routers) {
  std::vector<LayerId> sources;
  for (LayerId l = 0; l < samples.layers; ++l)
    if (!routers[size_t(l)].weight.empty() && !low_rank_targets(routers, l).empty()) sources.push_back(l);
  return sources;
}

void train_low_rank(const StepSamples& samples, const RouterConfig& router, const std::vector<HostRouter>& routers,
                    const TrainLowRankOptions& options, ThreadPool& pool, const std::function<void()>& progress,
                    TrainedPredictor& out) {
  const std::vector<LayerId> sources = low_rank_sources(samples, routers);
  int targets = 0;
  for (const LayerId l : sources) targets += int(low_rank_targets(routers, l).size());
  const LowRankSize size =
      low_rank_size(samples.hidden, samples.experts, int(sources.size()), targets, options.most_numbers);
  EF_CHECK(size.rank > 0, ConfigError,
           "low-rank: expected one that keeps within {} numbers for {} layers of {}, found none", options.most_numbers,
           sources.size(), samples.hidden);
  std::mutex mutex;
  pool.parallel_for(int64_t(sources.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      LowRankTraining training(samples, router, routers, sources[size_t(i)], size);
      training.run();
      const std::lock_guard lock(mutex);
      training.store(out);
      progress();
    }
  });
}

}  // namespace ef
#endif
