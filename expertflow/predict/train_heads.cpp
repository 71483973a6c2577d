#include "expertflow/predict/train_heads.h"

#include "expertflow/base/errors.h"

#ifdef EF_WITH_EIGEN
#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <mutex>
#include <random>

#include "expertflow/predict/forest_features.h"
#include "expertflow/predict/router_history.h"
#include "expertflow/predict/router_odds.h"
#include "expertflow/predict/slope_fit.h"
#include "expertflow/predict/train_low_rank.h"

namespace ef {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;
constexpr Eigen::Index kChunk = 1024;  // samples that are expanded at once

// Logits less their means, and the decaying mean before each sample: RouterHistory for all samples at once.
struct Histories {
  Matrix mean;                  // [layers, experts]
  std::vector<float> centered;  // [count, layers, experts]
  std::vector<float> average;   // likewise, before the sample
};

Histories histories_of(const StepSamples& s) {
  const size_t width = size_t(s.layers) * size_t(s.experts);
  Histories h;
  const Eigen::Map<const Matrix> logits(s.logits.data(), Eigen::Index(s.count), Eigen::Index(width));
  const Eigen::VectorXd mean = logits.cast<double>().colwise().mean();
  h.mean =
      Eigen::Map<const Eigen::Matrix<double, -1, -1, Eigen::RowMajor>>(mean.data(), s.layers, s.experts).cast<float>();
  h.centered.resize(s.count * width);
  h.average.assign(s.count * width, 0.f);
  for (size_t i = 0; i < s.count; ++i) {
    float* now = &h.centered[i * width];
    for (size_t j = 0; j < width; ++j) now[j] = s.logits[i * width + j] - h.mean.data()[j];
    if (s.begins[i]) continue;
    const float* before = now - width;
    for (size_t j = 0; j < width; ++j)
      h.average[i * width + j] =
          RouterHistory::kDecay * h.average[(i - 1) * width + j] + (1 - RouterHistory::kDecay) * before[j];
  }
  return h;
}

struct Job {
  LayerId layer, target;
  bool before_attention;
};

class HeadTraining {
 public:
  HeadTraining(const StepSamples& samples, const RouterConfig& router, const std::vector<HostRouter>& routers,
               const TrainHeadsOptions& options, const Histories& histories, TrainedPredictor& out)
      : s_(samples), router_(router), routers_(routers), options_(options), h_(histories), out_(out) {}

  void train(const Job& job) {
    const Eigen::Index hidden = s_.hidden, experts = s_.experts, parts = RouterHistory::kParts;
    const Eigen::Index width = hidden + parts * experts + 1;
    Eigen::MatrixXf gram = Eigen::MatrixXf::Zero(width, width);
    Matrix cross = Matrix::Zero(width, experts);
    Matrix x, y;
    for (Eigen::Index at = 0; at < Eigen::Index(s_.count); at += kChunk) {
      expand(job, at, std::min(kChunk, Eigen::Index(s_.count) - at), x, y);
      gram.selfadjointView<Eigen::Lower>().rankUpdate(x.transpose());
      cross.noalias() += x.transpose() * y;
    }
    gram.triangularView<Eigen::StrictlyUpper>() = gram.transpose();
    if (job.before_attention) {
      finish(job, "pre-attention", solve(gram, cross), false);
      return;
    }
    if (options_.hybrid) {
      // What is left when gate-ahead, which is linear in the stream too, has had its say.
      const HostRouter& router = routers_[size_t(job.target)];
      const Eigen::Map<const Matrix> w(router.weight.data(), experts, hidden);
      const Eigen::Map<const Eigen::RowVectorXf> b(router.bias.data(), experts);
      const Matrix left = cross - gram.leftCols(hidden) * w.transpose() - gram.rightCols(1) * b;
      finish(job, "hybrid", solve(gram, left), true);
    }
    if (options_.linear) {
      std::vector<Eigen::Index> kept;
      for (Eigen::Index i = 0; i < hidden; ++i) kept.push_back(i);
      kept.push_back(width - 1);
      const Matrix small = solve(gram(kept, kept), cross(kept, Eigen::all));
      Matrix whole = Matrix::Zero(width, experts);
      whole(kept, Eigen::all) = small;
      finish(job, "linear", whole, false);
    }
  }

 private:
  // x: [n, hidden + parts * experts + 1]: stream, RouterHistory::features(), 1. y: [n, experts], the target's logits.
  void expand(const Job& job, Eigen::Index begin, Eigen::Index n, Matrix& x, Matrix& y) const {
    const Eigen::Index hidden = s_.hidden, experts = s_.experts, width = hidden + RouterHistory::kParts * experts + 1;
    const size_t layers = size_t(s_.layers), row = layers * size_t(experts);
    x.setZero(n, width);
    y.resize(n, experts);
    const std::vector<uint16_t>& stream = job.before_attention ? s_.input : s_.routed;
    for (Eigen::Index r = 0; r < n; ++r) {
      const size_t i = size_t(begin + r);
      const uint16_t* from = &stream[(i * layers + size_t(job.layer)) * size_t(hidden)];
      for (Eigen::Index k = 0; k < hidden; ++k) x(r, k) = from_bf16(from[k]);
      const auto put = [&](Eigen::Index part, const float* values) {
        std::copy_n(values, experts, &x(r, hidden + part * experts));
      };
      const auto at = [&](const std::vector<float>& all, size_t sample, LayerId layer) {
        return &all[sample * row + size_t(layer) * size_t(experts)];
      };
      if (!s_.begins[i]) {
        put(0, at(h_.centered, i - 1, job.target));
        if (job.target - 1 > job.layer) put(1, at(h_.centered, i - 1, job.target - 1));
        if (job.target + 1 < s_.layers) put(2, at(h_.centered, i - 1, job.target + 1));
        put(3, at(h_.average, i, job.target));
      }
      x(r, width - 1) = 1;
      std::copy_n(&s_.logits[i * row + size_t(job.target) * size_t(experts)], experts, &y(r, 0));
    }
  }

  // Few samples for many features want a stronger hand.
  Matrix solve(const Eigen::MatrixXf& gram, const Matrix& cross) const {
    const float n = float(s_.count), width = float(gram.rows());
    Eigen::MatrixXf a = gram;
    a.diagonal().array() += n * (1e-4f + 0.02f * width / n);
    return a.llt().solve(cross);
  }

  // Centres the bias, finds the slope of the odds, stores.
  void finish(const Job& job, const char* kind, const Matrix& solution, bool on_gate) {
    const Eigen::Index hidden = s_.hidden, experts = s_.experts, parts = RouterHistory::kParts;
    TrainedTensor weight{experts, hidden, {}}, bias{1, experts + 1, {}}, history{experts, parts * experts, {}};
    const auto store = [](const Matrix& m, TrainedTensor& t) {
      const Matrix turned = m.transpose();
      t.values.assign(turned.data(), turned.data() + turned.size());
    };
    store(solution.topRows(hidden), weight);
    store(solution.middleRows(hidden, parts * experts), history);
    store(solution.bottomRows(1), bias);
    bias.values.push_back(slope(job, solution, on_gate));
    const std::lock_guard lock(mutex_);
    out_.tensors[head_name(kind, job.layer, job.target, "weight")] = std::move(weight);
    out_.tensors[head_name(kind, job.layer, job.target, "bias")] = std::move(bias);
    if (std::string_view(kind) != "linear")
      out_.tensors[head_name(kind, job.layer, job.target, "history")] = std::move(history);
  }

  // The slope with the smallest cross entropy on some of the samples.
  float slope(const Job& job, const Matrix& solution, bool on_gate) const {
    const Eigen::Index experts = s_.experts, hidden = s_.hidden, count = Eigen::Index(s_.count);
    const HostRouter& router = routers_[size_t(job.target)];
    const float* bias = router.selection_bias.empty() ? nullptr : router.selection_bias.data();
    SlopeFit fit(router_);
    Matrix x, y;
    constexpr Eigen::Index kPieces = 16, kPiece = 64;
    for (Eigen::Index piece = 0; piece < kPieces; ++piece) {
      const Eigen::Index at = std::max<Eigen::Index>(0, count - kPiece) * piece / (kPieces - 1);
      expand(job, at, std::min(kPiece, count), x, y);
      Matrix z = x * solution;
      if (on_gate) {
        const Eigen::Map<const Matrix> w(router.weight.data(), experts, hidden);
        z += x.leftCols(hidden) * w.transpose();
        z.rowwise() += Eigen::Map<const Eigen::RowVectorXf>(router.bias.data(), experts);
      }
      for (Eigen::Index r = 0; r < z.rows(); ++r) fit.add(&z(r, 0), &y(r, 0), bias);
    }
    return fit.best();
  }

  const StepSamples& s_;
  const RouterConfig& router_;
  const std::vector<HostRouter>& routers_;
  const TrainHeadsOptions& options_;
  const Histories& h_;
  TrainedPredictor& out_;
  std::mutex mutex_;
};

// Looks and targets drawn at random, every expert of each a row.
void train_forest(const StepSamples& s, const RouterConfig& router, const std::vector<HostRouter>& routers,
                  int distance, const Histories& h, ThreadPool& pool, TrainedPredictor& out) {
  const auto experts = size_t(s.experts), layers = size_t(s.layers), hidden = size_t(s.hidden);
  constexpr size_t kRows = 600'000;
  std::mt19937_64 random(1);
  ForestFeatures features(router);
  RouterOdds odds(router);
  std::vector<ForestRow> rows;
  std::vector<float> chosen, zeros(experts, 0.f), truth(experts), gate(experts), embedded(experts);
  const auto product = [&](const HostRouter& r, const uint16_t* x, std::vector<float>& to) {
    for (size_t e = 0; e < experts; ++e) {
      float sum = r.bias[e];
      for (size_t k = 0; k < hidden; ++k) sum += r.weight[e * hidden + k] * from_bf16(x[k]);
      to[e] = sum;
    }
  };
  constexpr size_t kMostTries = 1 << 22;
  for (size_t tries = 0; rows.size() < kRows && tries < kMostTries; ++tries) {
    const size_t i = random() % s.count, l = random() % layers, t = l + 1 + random() % size_t(distance);
    if (t >= layers || routers[l].weight.empty() || routers[t].weight.empty()) continue;
    const HostRouter& r = routers[t];
    const float* bias = r.selection_bias.empty() ? nullptr : r.selection_bias.data();
    product(r, &s.routed[(i * layers + l) * hidden], gate);
    product(r, &s.input[i * layers * hidden], embedded);
    const size_t at = (i * layers + t) * experts;
    const float* before = s.begins[i] ? zeros.data() : &h.centered[at - layers * experts];
    rows.resize(rows.size() + experts);
    features.rows(gate.data(), embedded.data(), bias, before, &h.average[at], h.mean.data() + t * experts, int(t - l),
                  LayerId(t), &rows[rows.size() - experts]);
    odds.row(&s.logits[at], bias, nullptr, 1.f, truth.data());
    for (const float p : truth) chosen.push_back(p > 0.5f ? 1.f : 0.f);
  }
  if (!rows.empty()) out.tensors["forest.nodes"] = Forest::train(rows, chosen, pool, 1).tensor();
}

}  // namespace

bool training_available() { return true; }

void train_heads(const StepSamples& samples, const RouterConfig& router, const std::vector<HostRouter>& routers,
                 const TrainHeadsOptions& options, ThreadPool& pool,
                 const std::function<void(size_t, size_t)>& progress, TrainedPredictor& out) {
  const Histories histories = histories_of(samples);
  std::vector<Job> jobs;
  const auto sparse = [&](LayerId l) { return !routers[size_t(l)].weight.empty(); };
  for (LayerId l = 0; l < samples.layers; ++l) {
    if (options.pre_attention && sparse(l)) jobs.push_back({l, l, true});
    // The first layers of a token that has just been chosen: its embedding and the tokens before are all there is.
    const int reach = std::min(options.distance, kEmbeddingReach);
    for (LayerId t = 1; options.pre_attention && l == 0 && t < samples.layers && t <= reach; ++t)
      if (sparse(t)) jobs.push_back({l, t, true});
    if (!options.linear && !options.hybrid) continue;
    for (LayerId t = l + 1; t < samples.layers && t - l <= options.distance; ++t)
      if (sparse(l) && sparse(t)) jobs.push_back({l, t, false});
  }
  HeadTraining training(samples, router, routers, options, histories, out);
  std::mutex mutex;
  size_t done = 0;
  const size_t low_rank = options.low_rank ? low_rank_sources(samples, routers).size() : 0;
  const size_t all = jobs.size() + low_rank;
  pool.parallel_for(int64_t(jobs.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      training.train(jobs[size_t(i)]);
      const std::lock_guard lock(mutex);
      progress(++done, all);
    }
  });
  if (options.low_rank)
    train_low_rank(
        samples, router, routers, {options.most_low_rank_numbers}, pool, [&] { progress(++done, all); }, out);
  if (options.forest) {
    ThreadPool four(std::min(pool.size(), 4));
    train_forest(samples, router, routers, options.distance, histories, four, out);
  }
  out.tensors["history.mean"] = {
      samples.layers, samples.experts, {histories.mean.data(), histories.mean.data() + histories.mean.size()}};
}

}  // namespace ef

#else
namespace ef {

bool training_available() { return false; }
void train_heads(const StepSamples&, const RouterConfig&, const std::vector<HostRouter>&, const TrainHeadsOptions&,
                 ThreadPool&, const std::function<void(size_t, size_t)>&, TrainedPredictor&) {
  fail<ConfigError>("train-predictor: this build was made without Eigen (Debian: libeigen3-dev)");
}

}  // namespace ef
#endif
