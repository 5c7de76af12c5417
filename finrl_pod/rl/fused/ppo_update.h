// What the kernels of policies share: the rollout, PPO's loss (Schulman et al. 2017) of a few rows, and one step of
// Adam down its gradient. The definition is `rl/algorithms/ppo.py` through autograd; `tests/rl/test_policy_kernel.py`
// compares the two.
#pragma once
#include <omp.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "adam.h"
#include "matmul.h"

typedef vec<float, 8> V;
typedef std::vector<float> Floats;
constexpr int64_t TILE = 48;    // rows worked at a time: whole blocks of a product, whole vectors of losses
constexpr int64_t PART = 4096;  // parameters updated at a time
constexpr float HALF_LOG_2PI = 0.918938533204672742f;
enum Tower { ACTOR, CRITIC };

// An item is a bar and the accounts of one group on it. D actions per account.
struct Rollout {
  int64_t members, items, accounts, total, own, table, actions, parameters;  // own, table: numbers of an account, a bar
  int64_t log_std_size, log_std_at;  // log standard deviations: D or 1, and their place in a member's row
  int64_t assets, has_cash;          // whose scores the actions are, cash first
  const uint8_t* tradable;           // [bars, assets], or null if all assets always are
  const float *flat, *features;      // [members, parameters], [bars, table]
  const int64_t *bar, *indices;      // [members, total]; [members, items] into total, or null: all in order
  const float *account, *action, *old_log_prob, *advantage, *target;  // [members, total, accounts, ..]
  const float *clip_range, *value_coefficient, *entropy_coefficient;  // [members]
};

// Adam's state and the limits of a step, per member.
struct AdamState {
  float *flat, *first, *second, *steps;                    // [members, parameters], the last [members]
  const float *learning_rate, *max_grad_norm, *target_kl;  // [members]
  const uint8_t* active;                                   // [members]: takes part
  uint8_t* alive;                                          // [members]: loss and gradient have been finite so far
  float* metrics;  // [5, members]: KL, clipped fraction, policy and value loss, gradient norm
  double beta_1, beta_2, epsilon;
};

// Buffers of one thread and the loss of up to TILE rows of one member. A subclass adds the network:
//   begin_member(member, training), accumulate_gradient(from, to, gradient), forward_items(tower, from, to, out),
//   sample_items(from, to, noise, scores, log_prob).
class PolicyWorker {
 public:
  double metrics[4];

  // A buffer for a gradient [parameters], all zero.
  float* zero_gradient(int64_t size) {
    gradient.assign(size, 0);
    return gradient.data();
  }

 protected:
  const Rollout& d;
  const int64_t action_wide;           // actions in whole vectors
  Floats gradient, action, back;       // back: gradient of the network's outputs [TILE, ..]
  Floats std_scale, log_std_gradient;  // [action_wide]; std_scale: 1 / std in training, else std
  Floats counted, constant_of;         // [TILE, action_wide], 1 for scores of tradable assets; [action_wide]
  int64_t p = 0, row_index[TILE];      // member; rows of the rollout
  float old_log_prob[TILE], advantage[TILE], target[TILE], mean = 0, scale = 0, constant = 0, constants[TILE];

  PolicyWorker(const Rollout& rollout, int64_t widest) : d(rollout), action_wide(padded(rollout.actions)) {
    action.resize(TILE * action_wide), back.resize(TILE * std::max(widest, action_wide));
    counted.resize(TILE * action_wide);
  }

  void begin_losses(int64_t member, bool training) {
    p = member;
    const float* log_std = d.flat + p * d.parameters + d.log_std_at;
    std_scale.assign(action_wide, 0), log_std_gradient.assign(action_wide, 0), constant_of.assign(action_wide, 0);
    constant = HALF_LOG_2PI * float(d.actions);
    for (int64_t i = 0; i < d.actions; i++) {
      const float value = log_std[d.log_std_size > 1 ? i : 0];
      constant += value, std_scale[i] = std::exp(training ? -value : value);
      constant_of[i] = HALF_LOG_2PI + value;
    }
    std::fill(constants, constants + TILE, constant);
    std::fill(metrics, metrics + 4, 0.0);
    if (training) measure_advantages();
  }
  void add_log_std_gradient(float* to) const {
    for (int64_t i = 0; i < d.actions; i++) to[d.log_std_at + (d.log_std_size > 1 ? i : 0)] += log_std_gradient[i];
  }

  // Position of item i of the minibatch in the rollout.
  int64_t item_index(int64_t i) const { return p * d.total + (d.indices ? d.indices[p * d.items + i] : i); }

  // Mean and standard deviation of the advantages of the whole minibatch, whichever part of it this thread works on.
  void measure_advantages() {
    double sum = 0, squares = 0;
    const double count = double(d.items * d.accounts);
    for (int64_t i = 0; i < d.items; i++)
      for (int64_t a = 0; a < d.accounts; a++) sum += d.advantage[item_index(i) * d.accounts + a];
    for (int64_t i = 0; i < d.items; i++)
      for (int64_t a = 0; a < d.accounts; a++) {
        const double deviation = d.advantage[item_index(i) * d.accounts + a] - sum / count;
        squares += deviation * deviation;
      }
    mean = float(sum / count), scale = 1 / (float(std::sqrt(squares / (count - 1))) + 1e-8f);
  }

  // Copies what the loss of `rows` rows needs.
  void gather_rows(int64_t rows) {
    for (int64_t r = 0; r < rows; r++) {
      const float* from = d.action + row_index[r] * d.actions;
      std::copy(from, from + d.actions, action.begin() + r * action_wide);
      if (d.tradable) constants[r] = count_scores(row_index[r], &counted[r * action_wide]);
      old_log_prob[r] = d.old_log_prob[row_index[r]], target[r] = d.target[row_index[r]];
      advantage[r] = (d.advantage[row_index[r]] - mean) * scale;
    }
  }

  // Marks the scores that enter the density of a row of the rollout, and returns the constant of that density.
  float count_scores(int64_t index, float* marks) const {
    const uint8_t* tradable = d.tradable + d.bar[index / d.accounts] * d.assets;
    float sum = 0;
    for (int64_t i = 0; i < d.actions; i++) {
      const bool counts = i < d.has_cash || tradable[i - d.has_cash];
      marks[i] = counts, sum += counts ? constant_of[i] : 0;
    }
    return sum;
  }

  // Leaves the gradient of the actor's means [rows, action_wide] in `back`.
  void policy_loss(const float* means, int64_t rows) {
    const float share = 1.0f / float(d.items * d.accounts), upper = 1 + d.clip_range[p], lower = 1 - d.clip_range[p];
    for (int64_t r = 0; r < rows; r += 8) {
      V squares[8] = {};
      const int64_t count = std::min<int64_t>(8, rows - r);
      for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < action_wide; j += 8) {
          const int64_t at = (r + i) * action_wide + j;
          V z = (load<float, 8>(&action[at]) - load<float, 8>(means + at)) * load<float, 8>(&std_scale[j]);
          if (d.tradable) z *= load<float, 8>(&counted[at]);
          store<float, 8>(&back[at], z);
          squares[i] += z * z;
        }
      const V log_ratio =
          -0.5f * horizontal_sums(squares) - load<float, 8>(constants + r) - load<float, 8>(old_log_prob + r);
      const V gain = load<float, 8>(advantage + r);
      V ratio = exp<8>(log_ratio);
      ratio = log_ratio > 88.0f ? broadcast<float, 8>(INFINITY) : ratio;
      const V clipped_ratio = clamp_max(clamp_min(ratio, broadcast<float, 8>(lower)), broadcast<float, 8>(upper));
      const V objective = ratio * gain, clipped = clipped_ratio * gain;
      for (int64_t i = 0; i < count; i++) {
        const bool unclipped = objective[i] < clipped[i] || objective[i] != objective[i];
        // Of the loss by the log-probability.
        const float slope = unclipped || clipped_ratio[i] == ratio[i] ? -objective[i] * share : 0;
        metrics[0] += ratio[i] - 1 - log_ratio[i];
        metrics[1] += std::fabs(ratio[i] - 1) > d.clip_range[p];
        metrics[2] -= unclipped ? objective[i] : clipped[i];
        for (int64_t j = 0; j < action_wide; j += 8) {
          float* at = &back[(r + i) * action_wide + j];
          const V z = load<float, 8>(at);
          const V one = d.tradable ? load<float, 8>(&counted[(r + i) * action_wide + j]) : broadcast<float, 8>(1);
          store<float, 8>(&log_std_gradient[j], load<float, 8>(&log_std_gradient[j]) + slope * (z * z - one));
          store<float, 8>(at, z * (slope * load<float, 8>(&std_scale[j])));
        }
      }
    }
  }

  // Gradient of the value loss by the value of row r.
  float value_loss_gradient(int64_t r, float value) {
    const float error = value - target[r];
    metrics[3] += double(error) * error;
    return 2 * d.value_coefficient[p] * error / float(d.items * d.accounts);
  }

  // The scores of row `index`, made with `noise`, and their log-density.
  float sample_row(int64_t index, const float* means, const float* noise, float* scores) {
    float squares = 0;
    for (int64_t i = 0; i < d.actions; i++) scores[i] = means[i] + std_scale[i] * noise[i];
    if (d.tradable) {
      const float each = count_scores(index, counted.data());
      for (int64_t i = 0; i < d.actions; i++) squares += counted[i] * noise[i] * noise[i];
      return -0.5f * squares - each;
    }
    for (int64_t i = 0; i < d.actions; i++) squares += noise[i] * noise[i];
    return -0.5f * squares - constant;
  }
};

// Calls f(worker, member, unit, from, to) for every part of every member's items, shared among threads.
template <class Worker, class Batch, class F>
static void share_items(const Batch& b, int64_t parts, F f) {
#pragma omp parallel
  {
    const FlushDenormals flush;
    Worker worker(b);
#pragma omp for schedule(dynamic)
    for (int64_t u = 0; u < b.members * parts; u++) {
      const int64_t part = u % parts;
      f(worker, u / parts, u, b.items * part / parts, b.items * (part + 1) / parts);
    }
  }
}
// Parts per member that keep all threads busy.
static int64_t parts_per_member(const Rollout& b) {
  const int64_t threads = omp_get_max_threads();
  return b.members % threads == 0 || b.members >= 4 * threads ? 1 : std::min(threads, b.items);
}

static double sum_of_squares(const float* x, int64_t count) {
  V part[4] = {};
  int64_t i = 0;
  for (; i + 32 <= count; i += 32)
    for (int j = 0; j < 4; j++) {
      const V v = load<float, 8>(x + i + j * 8);
      part[j] += v * v;
    }
  double sum = 0;
  for (; i < count; i++) sum += double(x[i]) * x[i];
  for (int j = 0; j < 32; j++) sum += part[j / 8][j % 8];
  return sum;
}

// Writes a member's metrics; returns whether it takes the step, and sets the factor that clips its gradient.
static bool start_step(const Rollout& b, const AdamState& s, int64_t p, const double* sums, double norm,
                       float* factor) {
  const double rows = double(b.items * b.accounts);
  float metrics[5];
  for (int k = 0; k < 5; k++) s.metrics[k * b.members + p] = metrics[k] = float(k < 4 ? sums[k] / rows : norm);
  const bool finite = std::isfinite(metrics[2]) && std::isfinite(metrics[3]) && std::isfinite(metrics[4]);
  s.alive[p] = s.alive[p] && (finite || !s.active[p]);
  *factor = norm > s.max_grad_norm[p] ? float(s.max_grad_norm[p] / norm) : 1.0f;
  const bool moves = s.active[p] && s.alive[p] && metrics[0] <= s.target_kl[p];
  s.steps[p] += moves;
  return moves;
}

static void step_parameters(const AdamState& s, int64_t p, int64_t from, const float* gradient, int64_t count,
                            float factor) {
  const AdamStep step = AdamStep::at(s.steps[p], s.learning_rate[p], s.beta_1, s.beta_2, s.epsilon);
  adam_step(step, count, gradient, factor, s.flat + from, s.first + from, s.second + from);
}

static void add_entropy_gradient(const Rollout& b, int64_t p, float* gradient) {
  const bool single = b.log_std_size == 1;
  if (!b.tradable) {
    const float each = float(b.actions) / float(b.log_std_size);
    for (int64_t i = 0; i < b.log_std_size; i++) gradient[b.log_std_at + i] -= b.entropy_coefficient[p] * each;
    return;
  }
  for (int64_t i = 0; i < b.actions; i++) {  // the share of items on whose bar score i enters the density
    int64_t count = 0;
    for (int64_t item = 0; item < b.items; item++) {
      const int64_t bar = b.bar[p * b.total + (b.indices ? b.indices[p * b.items + item] : item)];
      count += i < b.has_cash || b.tradable[bar * b.assets + i - b.has_cash];
    }
    gradient[b.log_std_at + (single ? 0 : i)] -= b.entropy_coefficient[p] * float(count) / float(b.items);
  }
}

// One minibatch of PPO for every member: gradient of the loss, clipped to its greatest norm, and a step of Adam.
template <class Worker, class Batch>
static void take_step(const Batch& b, const AdamState& s) {
  const int64_t parts = parts_per_member(b), d = b.parameters, chunks = (d + PART - 1) / PART;
  if (parts == 1) {  // one thread per member: its gradient never leaves the cache
    share_items<Worker>(b, 1, [&](Worker& worker, int64_t p, int64_t, int64_t, int64_t) {
      float factor, *gradient = worker.zero_gradient(d);
      worker.begin_member(p, true);
      worker.accumulate_gradient(0, b.items, gradient);
      add_entropy_gradient(b, p, gradient);
      if (start_step(b, s, p, worker.metrics, std::sqrt(sum_of_squares(gradient, d)), &factor))
        step_parameters(s, p, p * d, gradient, d, factor);
    });
    return;
  }
  const std::unique_ptr<float[]> partial(new float[b.members * parts * d]);
  std::vector<double> metrics(b.members * parts * 4), squares(b.members * chunks);
  share_items<Worker>(b, parts, [&](Worker& worker, int64_t p, int64_t u, int64_t from, int64_t to) {
    float* gradient = partial.get() + u * d;
    std::fill(gradient, gradient + d, 0.0f);
    worker.begin_member(p, true);
    worker.accumulate_gradient(from, to, gradient);
    std::copy(worker.metrics, worker.metrics + 4, metrics.begin() + u * 4);
    if (from == 0) add_entropy_gradient(b, p, gradient);
  });
  std::vector<float> factor(b.members);
  std::vector<char> moves(b.members);
#pragma omp parallel
  {
    const FlushDenormals flush;
#pragma omp for schedule(static)
    for (int64_t c = 0; c < b.members * chunks; c++) {  // parts are added in order, whichever thread made them
      const int64_t p = c / chunks, from = c % chunks * PART, count = std::min(PART, d - from);
      float* to = partial.get() + p * parts * d + from;
      for (int64_t u = 1; u < parts; u++)
        for (int64_t i = 0; i < count; i++) to[i] += to[u * d + i];
      squares[c] = sum_of_squares(to, count);
    }
#pragma omp for schedule(static)
    for (int64_t p = 0; p < b.members; p++) {
      double sums[4] = {}, norm = 0;
      for (int64_t u = p * parts; u < (p + 1) * parts; u++)
        for (int k = 0; k < 4; k++) sums[k] += metrics[u * 4 + k];
      for (int64_t c = p * chunks; c < (p + 1) * chunks; c++) norm += squares[c];
      moves[p] = start_step(b, s, p, sums, std::sqrt(norm), &factor[p]);
    }
#pragma omp for schedule(static)
    for (int64_t c = 0; c < b.members * chunks; c++) {
      const int64_t p = c / chunks, from = c % chunks * PART;
      const float* gradient = partial.get() + p * parts * d + from;
      if (moves[p]) step_parameters(s, p, p * d + from, gradient, std::min(PART, d - from), factor[p]);
    }
  }
}

// The functions of a policy's library: one step, a tower's outputs [members, items, accounts, ..], and sampled actions.
#define EXPORT_POLICY(Worker, Batch)                                                                             \
  extern "C" void policy_step(const Batch* batch, const AdamState* state) { take_step<Worker>(*batch, *state); } \
  extern "C" void policy_forward(const Batch* batch, int64_t tower, float* out) {                                \
    share_items<Worker>(*batch, parts_per_member(*batch),                                                        \
                        [&](Worker& worker, int64_t p, int64_t, int64_t from, int64_t to) {                      \
                          worker.begin_member(p, false);                                                         \
                          worker.forward_items(int(tower), from, to, out);                                       \
                        });                                                                                      \
  }                                                                                                              \
  extern "C" void policy_sample(const Batch* batch, const float* noise, float* action, float* log_prob) {        \
    share_items<Worker>(*batch, parts_per_member(*batch),                                                        \
                        [&](Worker& worker, int64_t p, int64_t, int64_t from, int64_t to) {                      \
                          worker.begin_member(p, false);                                                         \
                          worker.sample_items(from, to, noise, action, log_prob);                                \
                        });                                                                                      \
  }
