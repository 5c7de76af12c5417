// What the fused policies share: where the rollout lies, PPO's loss of a few rows, and a step of Adam down its gradient.
// The plain version is PPO's through autograd and `parameters.Adam`: the definition.
#pragma once
#include <omp.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "product.h"

typedef lane<float, 8> V;
typedef std::vector<float> Floats;
constexpr int64_t TILE = 48;    // rows worked at a time: whole strips of a product, whole vectors of losses
constexpr int64_t PART = 4096;  // parameters that are worked in one go
constexpr float HALF_LOG_2PI = 0.918938533204672742f;

struct Data {
  int64_t members, items, accounts, total, own, table, actions, parameters;
  int64_t spreads, log_std_at;  // how many logarithms of standard deviations, D or 1, and where in a member's row
  const float *flat, *features;                              // [members, parameters], [days, table]
  const int64_t *day, *chosen;                               // [members, total], [members, items] of those or null
  const float *account, *action, *old, *advantage, *target;  // [members, total, accounts, ..]
  const float *clip, *value_weight, *entropy;                // [members]
};

// What a thread needs for the loss of up to TILE rows of one member.
class Losses {
 public:
  double figures[4];

  // Room for a gradient [parameters], all zero.
  float* fresh_gradient(int64_t size) {
    gradient.assign(size, 0);
    return gradient.data();
  }

 protected:
  const Data& d;
  const int64_t action_wide;
  Floats gradient, action, back, spread, grad_log_std;  // [TILE, action_wide], the gradient of what was said, [action_wide] each
  int64_t p = 0, where[TILE];                 // a row's place in the data
  float old[TILE], advantage[TILE], target[TILE], mean = 0, scale = 0, constant = 0;

  Losses(const Data& data, int64_t widest) : d(data), action_wide(padded(data.actions)) {
    action.resize(TILE * action_wide), back.resize(TILE * std::max(widest, action_wide));
  }

  void take_losses(int64_t member, bool learns) {
    p = member;
    const float* log_std = d.flat + p * d.parameters + d.log_std_at;
    spread.assign(action_wide, 0), grad_log_std.assign(action_wide, 0);
    constant = HALF_LOG_2PI * float(d.actions);
    for (int64_t i = 0; i < d.actions; i++) {
      const float mine = log_std[d.spreads > 1 ? i : 0];
      constant += mine, spread[i] = std::exp(learns ? -mine : mine);
    }
    std::fill(figures, figures + 4, 0.0);
    if (learns) normalise();
  }
  void add_spreads(float* gradient) const {
    for (int64_t i = 0; i < d.actions; i++) gradient[d.log_std_at + (d.spreads > 1 ? i : 0)] += grad_log_std[i];
  }

  int64_t place_of(int64_t i) const { return p * d.total + (d.chosen ? d.chosen[p * d.items + i] : i); }

  // Mean and spread of the advantages of the minibatch, however many work on it.
  void normalise() {
    double sum = 0, squares = 0;
    const double count = double(d.items * d.accounts);
    for (int64_t i = 0; i < d.items; i++)
      for (int64_t a = 0; a < d.accounts; a++) sum += d.advantage[place_of(i) * d.accounts + a];
    for (int64_t i = 0; i < d.items; i++)
      for (int64_t a = 0; a < d.accounts; a++) {
        const double off = d.advantage[place_of(i) * d.accounts + a] - sum / count;
        squares += off * off;
      }
    mean = float(sum / count), scale = 1 / (float(std::sqrt(squares / (count - 1))) + 1e-8f);
  }

  void gather(int64_t many) {
    for (int64_t r = 0; r < many; r++) {
      const float* from = d.action + where[r] * d.actions;
      std::copy(from, from + d.actions, action.begin() + r * action_wide);
      old[r] = d.old[where[r]], target[r] = d.target[where[r]], advantage[r] = (d.advantage[where[r]] - mean) * scale;
    }
  }

  // Leaves the gradient of the actor's means [many, action_wide] in `back`.
  void policy_loss(const float* means, int64_t many) {
    const float share = 1.0f / float(d.items * d.accounts), most = 1 + d.clip[p], least = 1 - d.clip[p];
    for (int64_t r = 0; r < many; r += 8) {
      V squares[8] = {};
      const int64_t count = std::min<int64_t>(8, many - r);
      for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < action_wide; j += 8) {
          const int64_t at = (r + i) * action_wide + j;
          const V off = (load<float, 8>(&action[at]) - load<float, 8>(means + at)) * load<float, 8>(&spread[j]);
          store<float, 8>(&back[at], off);
          squares[i] += off * off;
        }
      const V log_ratio = -0.5f * sums(squares) - constant - load<float, 8>(old + r), gain = load<float, 8>(advantage + r);
      V ratio = exponential<8>(log_ratio);
      ratio = log_ratio > 88.0f ? all<float, 8>(INFINITY) : ratio;
      const V near = at_most(at_least(ratio, all<float, 8>(least)), all<float, 8>(most));
      const V free = ratio * gain, held = near * gain;
      for (int64_t i = 0; i < count; i++) {
        const bool lower = free[i] < held[i] || free[i] != free[i];
        const float slope = lower || near[i] == ratio[i] ? -free[i] * share : 0;  // of the loss by the log-probability
        figures[0] += ratio[i] - 1 - log_ratio[i];
        figures[1] += std::fabs(ratio[i] - 1) > d.clip[p];
        figures[2] -= lower ? free[i] : held[i];
        for (int64_t j = 0; j < action_wide; j += 8) {
          float* at = &back[(r + i) * action_wide + j];
          const V off = load<float, 8>(at);
          store<float, 8>(&grad_log_std[j], load<float, 8>(&grad_log_std[j]) + slope * (off * off - 1.0f));
          store<float, 8>(at, off * (slope * load<float, 8>(&spread[j])));
        }
      }
    }
  }

  // The gradient of a value by its loss.
  float value_slope(int64_t r, float value) {
    const float off = value - target[r];
    figures[3] += double(off) * off;
    return 2 * d.value_weight[p] * off / float(d.items * d.accounts);
  }
  // A row's scores drawn with `noise`, and the logarithm of their density.
  float draw_row(const float* means, const float* noise, float* scores) const {
    float squares = 0;
    for (int64_t i = 0; i < d.actions; i++) scores[i] = means[i] + spread[i] * noise[i];
    for (int64_t i = 0; i < d.actions; i++) squares += noise[i] * noise[i];
    return -0.5f * squares - constant;
  }
};

// Works every member's items in parts, each by one thread; parts: as many a member as keep all threads busy.
template <class Worker, class B, class F>
static void share_out(const B& b, int64_t parts, F f) {
#pragma omp parallel
  {
    const TinyIsZero flush;
    Worker worker(b);
#pragma omp for schedule(dynamic)
    for (int64_t u = 0; u < b.members * parts; u++) {
      const int64_t part = u % parts;
      f(worker, u / parts, u, b.items * part / parts, b.items * (part + 1) / parts);
    }
  }
}
static int64_t parts_of(const Data& b) {
  const int64_t threads = omp_get_max_threads();
  return b.members % threads == 0 || b.members >= 4 * threads ? 1 : std::min(threads, b.items);
}

// Adam for every member, and who may still move.
struct Step {
  float *flat, *first, *second, *steps;               // [members, parameters] and [members]
  const float *rate, *most_norm, *most_kl;            // [members]
  const uint8_t* active;                              // [members]: who takes part
  uint8_t* alive;                                     // [members]: whose losses were numbers so far
  float* figures;                                     // [5, members]: KL, share clipped, policy and value loss, norm
  double decay_1, decay_2, epsilon;
};

static double squares_of(const float* x, int64_t count) {
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

// Notes a member's figures and norm; whether it moves, and then what its gradient is to be multiplied by.
static bool judge(const Data& b, const Step& s, int64_t p, const double* sums, double norm, float* factor) {
  const double rows = double(b.items * b.accounts);
  float mine[5];
  for (int k = 0; k < 5; k++) s.figures[k * b.members + p] = mine[k] = float(k < 4 ? sums[k] / rows : norm);
  const bool numbers = std::isfinite(mine[2]) && std::isfinite(mine[3]) && std::isfinite(mine[4]);
  s.alive[p] = s.alive[p] && (numbers || !s.active[p]);
  *factor = norm > s.most_norm[p] ? float(s.most_norm[p] / norm) : 1.0f;
  const bool moves = s.active[p] && s.alive[p] && mine[0] <= s.most_kl[p];
  s.steps[p] += moves;
  return moves;
}

static void descend(const Step& s, int64_t p, int64_t from, const float* gradient, int64_t count, float factor) {
  const double t = s.steps[p];
  const float step = float(s.rate[p] / (1 - std::pow(s.decay_1, t))), d1 = float(1 - s.decay_1);
  const float spread = float(1 / std::sqrt(1 - std::pow(s.decay_2, t))), keep = float(s.decay_2);
  const float d2 = float(1 - s.decay_2), least = float(s.epsilon);
  float *flat = s.flat + from, *first = s.first + from, *second = s.second + from;
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    const float g = gradient[i] * factor, m = first[i] + d1 * (g - first[i]), v = keep * second[i] + d2 * g * g;
    first[i] = m;
    second[i] = v;
    flat[i] -= step * m / (std::sqrt(v) * spread + least);
  }
}

static void less_entropy(const Data& b, int64_t p, float* gradient) {
  const float each = float(b.actions) / float(b.spreads);
  for (int64_t i = 0; i < b.spreads; i++) gradient[b.log_std_at + i] -= b.entropy[p] * each;
}

// One minibatch of PPO for every member: the gradient of the loss, cut to its greatest norm, and a step of Adam.
template <class Worker, class B>
static void take_step(const B& b, const Step& s) {
  const int64_t parts = parts_of(b), d = b.parameters, chunks = (d + PART - 1) / PART;
  if (parts == 1) {  // a member to a thread: its gradient never leaves the cache
    share_out<Worker>(b, 1, [&](Worker& worker, int64_t p, int64_t, int64_t, int64_t) {
      float factor, *gradient = worker.fresh_gradient(d);
      worker.take(p, true);
      worker.learn(0, b.items, gradient);
      less_entropy(b, p, gradient);
      if (judge(b, s, p, worker.figures, std::sqrt(squares_of(gradient, d)), &factor))
        descend(s, p, p * d, gradient, d, factor);
    });
    return;
  }
  const std::unique_ptr<float[]> partial(new float[b.members * parts * d]);
  std::vector<double> figures(b.members * parts * 4), squares(b.members * chunks);
  share_out<Worker>(b, parts, [&](Worker& worker, int64_t p, int64_t u, int64_t from, int64_t to) {
    float* gradient = partial.get() + u * d;
    std::fill(gradient, gradient + d, 0.0f);
    worker.take(p, true);
    worker.learn(from, to, gradient);
    std::copy(worker.figures, worker.figures + 4, figures.begin() + u * 4);
    if (from == 0) less_entropy(b, p, gradient);
  });
  std::vector<float> factor(b.members);
  std::vector<char> moves(b.members);
#pragma omp parallel
  {
    const TinyIsZero flush;
#pragma omp for schedule(static)
    for (int64_t c = 0; c < b.members * chunks; c++) {  // added up in order, whoever was first
      const int64_t p = c / chunks, from = c % chunks * PART, count = std::min(PART, d - from);
      float* to = partial.get() + p * parts * d + from;
      for (int64_t u = 1; u < parts; u++)
        for (int64_t i = 0; i < count; i++) to[i] += to[u * d + i];
      squares[c] = squares_of(to, count);
    }
#pragma omp for schedule(static)
    for (int64_t p = 0; p < b.members; p++) {
      double sums[4] = {}, norm = 0;
      for (int64_t u = p * parts; u < (p + 1) * parts; u++)
        for (int k = 0; k < 4; k++) sums[k] += figures[u * 4 + k];
      for (int64_t c = p * chunks; c < (p + 1) * chunks; c++) norm += squares[c];
      moves[p] = judge(b, s, p, sums, std::sqrt(norm), &factor[p]);
    }
#pragma omp for schedule(static)
    for (int64_t c = 0; c < b.members * chunks; c++) {
      const int64_t p = c / chunks, from = c % chunks * PART;
      const float* gradient = partial.get() + p * parts * d + from;
      if (moves[p]) descend(s, p, p * d + from, gradient, std::min(PART, d - from), factor[p]);
    }
  }
}

// What `Worker` says of every row, actions drawn with `noise` and the logarithm of their density, and a step: for Python.
#define EXPORT_POLICY(Worker, Batch)                                                                                 \
  extern "C" void policy_step(const Batch* batch, const Step* step) { take_step<Worker>(*batch, *step); }            \
  extern "C" void policy_forward(const Batch* batch, int64_t t, float* out) {                                        \
    share_out<Worker>(*batch, parts_of(*batch), [&](Worker& worker, int64_t p, int64_t, int64_t from, int64_t to) {  \
      worker.take(p, false);                                                                                         \
      worker.say(int(t), from, to, out);                                                                             \
    });                                                                                                              \
  }                                                                                                                  \
  extern "C" void policy_sample(const Batch* batch, const float* noise, float* action, float* chance) {                \
    share_out<Worker>(*batch, parts_of(*batch), [&](Worker& worker, int64_t p, int64_t, int64_t from, int64_t to) {  \
      worker.take(p, false);                                                                                         \
      worker.draw(from, to, noise, action, chance);                                                                  \
    });                                                                                                              \
  }
