// An MlpPolicy on a CPU: its values, actions drawn from it, and a step of PPO down the gradient of its loss. The plain
// version is PPO's through autograd and `parameters.Adam`: the definition.
#include <omp.h>

#include <memory>

#include "mlp_worker.h"

constexpr int64_t PART = 4096;  // parameters that are worked in one go

// Works every member's items in parts, each by one thread; parts: as many a member as keep all threads busy.
template <class F>
static void share_out(const Batch& b, int64_t parts, F f) {
#pragma omp parallel
  {
    Worker worker(b);
#pragma omp for schedule(dynamic)
    for (int64_t u = 0; u < b.members * parts; u++) {
      const int64_t part = u % parts;
      f(worker, u / parts, u, b.items * part / parts, b.items * (part + 1) / parts);
    }
  }
}
static int64_t parts_of(const Batch& b) {
  const int64_t threads = omp_get_max_threads();
  return b.members % threads == 0 || b.members >= 4 * threads ? 1 : std::min(threads, b.items);
}

// What tower t says for every row: out [members, items, accounts, outputs].
extern "C" void mlp_forward(const Batch* batch, int64_t t, float* out) {
  share_out(*batch, parts_of(*batch), [&](Worker& worker, int64_t p, int64_t, int64_t from, int64_t to) {
    worker.take(p, false);
    worker.say(int(t), from, to, out);
  });
}

// Actions drawn with `noise`, and the logarithm of their density: [members, items, accounts, actions] and without the
// last.
extern "C" void mlp_draw(const Batch* batch, const float* noise, float* action, float* chance) {
  share_out(*batch, parts_of(*batch), [&](Worker& worker, int64_t p, int64_t, int64_t from, int64_t to) {
    worker.take(p, false);
    worker.draw(from, to, noise, action, chance);
  });
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
static bool judge(const Batch& b, const Step& s, int64_t p, const double* sums, double norm, float* factor) {
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

// One minibatch of PPO for every member: the gradient of the loss, cut to its greatest norm, and a step of Adam.
extern "C" void mlp_step(const Batch* batch, const Step* step) {
  const Batch& b = *batch;
  const Step& s = *step;
  const int64_t parts = parts_of(b), d = b.parameters, chunks = (d + PART - 1) / PART;
  if (parts == 1) {  // a member to a thread: its gradient never leaves the cache
    share_out(b, 1, [&](Worker& worker, int64_t p, int64_t, int64_t, int64_t) {
      float factor, *gradient = worker.fresh_gradient();
      worker.take(p, true);
      worker.learn(0, b.items, gradient);
      for (int64_t i = 0; i < b.actions; i++) gradient[b.log_std_at + i] -= b.entropy[p];
      if (judge(b, s, p, worker.figures, std::sqrt(squares_of(gradient, d)), &factor))
        descend(s, p, p * d, gradient, d, factor);
    });
    return;
  }
  const std::unique_ptr<float[]> partial(new float[b.members * parts * d]);
  std::vector<double> figures(b.members * parts * 4), squares(b.members * chunks);
  share_out(b, parts, [&](Worker& worker, int64_t p, int64_t u, int64_t from, int64_t to) {
    float* gradient = partial.get() + u * d;
    std::fill(gradient, gradient + d, 0.0f);
    worker.take(p, true);
    worker.learn(from, to, gradient);
    std::copy(worker.figures, worker.figures + 4, figures.begin() + u * 4);
    for (int64_t i = 0; i < b.actions && from == 0; i++) gradient[b.log_std_at + i] -= b.entropy[p];
  });
  std::vector<float> factor(b.members);
  std::vector<char> moves(b.members);
#pragma omp parallel
  {
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
