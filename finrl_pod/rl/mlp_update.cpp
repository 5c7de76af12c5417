// PPO's loss of the two towers of an MlpPolicy and its gradient, a few rows at a time, so that everything between the
// account and the gradient stays in the nearest cache. The plain version is PPO's loss through autograd: the definition.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "simd.h"

constexpr int W = 8;
constexpr int64_t TILE = 48;  // rows worked at a time: a multiple of the six that a product takes at once
typedef lane<float, W> V;

static inline int64_t padded(int64_t n) { return (n + W - 1) / W * W; }

// c [R, n] (+)= a [R, k] b [k, n] for R rows at once; n a multiple of 8. a is read at a[i * rows + j * columns].
template <int R, int C>
static inline void block(const float* a, int64_t rows, int64_t columns, const float* b, int64_t ldb, float* c,
                         int64_t ldc, int64_t k, bool add) {
  V sum[R][C];
#pragma GCC unroll 8
  for (int i = 0; i < R; i++)
#pragma GCC unroll 2
    for (int j = 0; j < C; j++) sum[i][j] = add ? load<float, W>(c + i * ldc + j * W) : V{};
  for (int64_t x = 0; x < k; x++) {
    V right[C];
#pragma GCC unroll 2
    for (int j = 0; j < C; j++) right[j] = load<float, W>(b + x * ldb + j * W);
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) {
      const float left = a[i * rows + x * columns];
#pragma GCC unroll 2
      for (int j = 0; j < C; j++) sum[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; i++)
#pragma GCC unroll 2
    for (int j = 0; j < C; j++) store<float, W>(c + i * ldc + j * W, sum[i][j]);
}
template <int R>
static void strip(const float* a, int64_t rows, int64_t columns, const float* b, int64_t ldb, float* c, int64_t ldc,
                  int64_t n, int64_t k, bool add) {
  int64_t j = 0;
  for (; j + 2 * W <= n; j += 2 * W) block<R, 2>(a, rows, columns, b + j, ldb, c + j, ldc, k, add);
  if (j < n) block<R, 1>(a, rows, columns, b + j, ldb, c + j, ldc, k, add);
}
static void product(const float* a, int64_t rows, int64_t columns, const float* b, int64_t ldb, float* c, int64_t ldc,
                    int64_t m, int64_t n, int64_t k, bool add) {
  int64_t i = 0;
  for (; i + 6 <= m; i += 6) strip<6>(a + i * rows, rows, columns, b, ldb, c + i * ldc, ldc, n, k, add);
  const float* rest = a + i * rows;
  float* to = c + i * ldc;
  switch (m - i) {
    case 5: return strip<5>(rest, rows, columns, b, ldb, to, ldc, n, k, add);
    case 4: return strip<4>(rest, rows, columns, b, ldb, to, ldc, n, k, add);
    case 3: return strip<3>(rest, rows, columns, b, ldb, to, ldc, n, k, add);
    case 2: return strip<2>(rest, rows, columns, b, ldb, to, ldc, n, k, add);
    case 1: return strip<1>(rest, rows, columns, b, ldb, to, ldc, n, k, add);
  }
}

constexpr int64_t MOST_LAYERS = 9;  // products of a tower: hidden widths and the one to the output

struct Batch {
  int64_t members, items, accounts, own, actions, layers, parameters;
  int64_t width[MOST_LAYERS];                       // what each product of the actor leads to; the critic's last is 1
  int64_t weight_at[2][MOST_LAYERS], bias_at[2][MOST_LAYERS];  // in a member's row; actor, critic; bias_at[..][0] unused
  int64_t log_std_at;
  const float* flat;                                // [members, parameters]
  const float* base[2];                             // [members, items, width[0]]: the table's part of the first sum
  const float *account, *action, *old, *advantage, *target;  // [members, items, accounts, ..]
  const float *clip, *value_weight, *entropy;       // [members]
  float* gradient;                                  // [members, parameters], without the table's part
  float* grad_base[2];                              // as base
  double* figures;                                  // [members, 4]: KL, share clipped, policy loss, value loss
};

struct Layer {
  int64_t in, out, wide_in, wide_out;
  std::vector<float> weight, back, bias;  // [in, wide_out], [out, wide_in], [wide_out]
  std::vector<float> grad_weight, grad_bias;
};

// The layers of both towers of one member, padded, with room for their gradients.
struct Towers {
  std::vector<Layer> tower[2];
  std::vector<float> log_std, grad_log_std;
  double figures[4] = {0, 0, 0, 0};

  Towers(const Batch& b, int64_t p) {
    const float* row = b.flat + p * b.parameters;
    for (int t = 0; t < 2; t++) {
      int64_t in = b.own;
      for (int64_t l = 0; l < b.layers; l++) {
        Layer y;
        y.in = in;
        y.out = t == 1 && l == b.layers - 1 ? 1 : b.width[l];
        y.wide_in = padded(in), y.wide_out = padded(y.out);
        y.weight.assign(y.in * y.wide_out, 0), y.back.assign(y.out * y.wide_in, 0), y.bias.assign(y.wide_out, 0);
        y.grad_weight.assign(y.in * y.wide_out, 0), y.grad_bias.assign(y.wide_out, 0);
        const float* w = row + b.weight_at[t][l];
        for (int64_t i = 0; i < y.in; i++)
          for (int64_t j = 0; j < y.out; j++)
            y.weight[i * y.wide_out + j] = y.back[j * y.wide_in + i] = w[i * y.out + j];
        if (l) std::copy(row + b.bias_at[t][l], row + b.bias_at[t][l] + y.out, y.bias.begin());
        in = y.out;
        tower[t].push_back(std::move(y));
      }
    }
    log_std.assign(row + b.log_std_at, row + b.log_std_at + b.actions);
    grad_log_std.assign(b.actions, 0);
  }

  void add_to(const Batch& b, int64_t p) const {
    float* row = b.gradient + p * b.parameters;
    for (int t = 0; t < 2; t++)
      for (int64_t l = 0; l < b.layers; l++) {
        const Layer& y = tower[t][l];
        float* w = row + b.weight_at[t][l];
        for (int64_t i = 0; i < y.in; i++)
          for (int64_t j = 0; j < y.out; j++) w[i * y.out + j] += y.grad_weight[i * y.wide_out + j];
        if (l)
          for (int64_t j = 0; j < y.out; j++) row[b.bias_at[t][l] + j] += y.grad_bias[j];
      }
    for (int64_t d = 0; d < b.actions; d++) row[b.log_std_at + d] += grad_log_std[d];
    for (int i = 0; i < 4; i++) b.figures[p * 4 + i] += figures[i];
  }
};

// Work space of one thread: what each layer made of a tile, and the gradient on its way back.
struct Space {
  std::vector<float> made[2][MOST_LAYERS], back, before;
  explicit Space(const Batch& b) {
    int64_t widest = padded(b.own);
    for (int64_t l = 0; l < b.layers; l++) widest = std::max(widest, padded(b.width[l]));
    for (int t = 0; t < 2; t++)
      for (int64_t l = 0; l < b.layers; l++) made[t][l].assign(TILE * widest, 0);
    back.assign(TILE * widest, 0), before.assign(TILE * widest, 0);
  }
};

static void forward(const Batch& b, const Towers& m, Space& s, int t, int64_t p, int64_t row, int64_t rows) {
  const float* in = b.account + (p * b.items * b.accounts + row) * b.own;
  int64_t stride = b.own;
  for (int64_t l = 0; l < b.layers; l++) {
    const Layer& y = m.tower[t][l];
    float* out = s.made[t][l].data();
    const bool last = l == b.layers - 1;
    for (int64_t r = 0; r < rows; r++) {  // the sums begin with what is added to them
      float* to = out + r * y.wide_out;
      if (l) {
        std::copy(y.bias.begin(), y.bias.end(), to);
      } else {
        const float* base = b.base[t] + (p * b.items + (row + r) / b.accounts) * y.out;
        std::copy(base, base + y.out, to);
        std::fill(to + y.out, to + y.wide_out, 0.0f);
      }
    }
    product(in, stride, 1, y.weight.data(), y.wide_out, out, y.wide_out, rows, y.wide_out, y.in, true);
    if (!last)
      for (int64_t i = 0; i < rows * y.wide_out; i += W) store<float, W>(out + i, tangent<W>(load<float, W>(out + i)));
    in = out, stride = y.wide_out;
  }
}

// `s.back` holds the gradient of the last layer's sums.
static void backward(const Batch& b, Towers& m, Space& s, int t, int64_t p, int64_t row, int64_t rows) {
  for (int64_t l = b.layers - 1; l >= 0; l--) {
    Layer& y = m.tower[t][l];
    const float* g = s.back.data();
    const float* in = l ? s.made[t][l - 1].data() : b.account + (p * b.items * b.accounts + row) * b.own;
    const int64_t stride = l ? y.wide_in : b.own;
    product(in, 1, stride, g, y.wide_out, y.grad_weight.data(), y.wide_out, y.in, y.wide_out, rows, true);
    if (!l) {
      for (int64_t r = 0; r < rows; r++) {
        float* to = b.grad_base[t] + (p * b.items + (row + r) / b.accounts) * y.out;
        for (int64_t j = 0; j < y.out; j++) to[j] += g[r * y.wide_out + j];
      }
      return;
    }
    for (int64_t r = 0; r < rows; r++)
      for (int64_t j = 0; j < y.wide_out; j++) y.grad_bias[j] += g[r * y.wide_out + j];
    float* before = s.before.data();
    product(g, y.wide_out, 1, y.back.data(), y.wide_in, before, y.wide_in, rows, y.wide_in, y.out, false);
    for (int64_t i = 0; i < rows * y.wide_in; i += W) {
      const V h = load<float, W>(in + i);
      store<float, W>(before + i, load<float, W>(before + i) * (1.0f - h * h));
    }
    std::swap(s.back, s.before);
  }
}

static void tile(const Batch& b, Towers& m, Space& s, int64_t p, int64_t row, int64_t rows) {
  const int64_t first = p * b.items * b.accounts + row, d = b.actions, wide = padded(d);
  const float share = 1.0f / float(b.items * b.accounts), clip = b.clip[p];
  forward(b, m, s, 0, p, row, rows);
  const float* mean = s.made[0][b.layers - 1].data();
  float constant = 0.918938533204672742f * float(d), spread[d];
  for (int64_t i = 0; i < d; i++) constant += m.log_std[i], spread[i] = std::exp(-m.log_std[i]);
  for (int64_t r = 0; r < rows; r++) {
    const float *action = b.action + (first + r) * d, *mu = mean + r * wide;
    float *back = s.back.data() + r * wide, squares = 0;
    for (int64_t i = 0; i < d; i++) {
      back[i] = (action[i] - mu[i]) * spread[i];
      squares += back[i] * back[i];
    }
    std::fill(back + d, back + wide, 0.0f);
    const float log_ratio = -0.5f * squares - constant - b.old[first + r], ratio = std::exp(log_ratio);
    const float advantage = b.advantage[first + r];
    const float near = ratio < 1 - clip ? 1 - clip : (ratio > 1 + clip ? 1 + clip : ratio);
    const float free = ratio * advantage, held = near * advantage;
    const bool moves = near == ratio || free < held || free != free;
    m.figures[0] += ratio - 1 - log_ratio;
    m.figures[1] += std::fabs(ratio - 1) > clip;
    m.figures[2] -= free < held || free != free ? free : held;
    const float slope = moves ? -free * share : 0;  // of the policy loss by the log-probability
    for (int64_t i = 0; i < d; i++) {
      m.grad_log_std[i] += slope * (back[i] * back[i] - 1);
      back[i] *= slope * spread[i];
    }
  }
  backward(b, m, s, 0, p, row, rows);
  forward(b, m, s, 1, p, row, rows);
  const float* value = s.made[1][b.layers - 1].data();
  std::fill(s.back.begin(), s.back.begin() + rows * W, 0.0f);
  for (int64_t r = 0; r < rows; r++) {
    const float off = value[r * W] - b.target[first + r];
    m.figures[3] += double(off) * off;
    s.back[r * W] = 2 * b.value_weight[p] * off * share;
  }
  backward(b, m, s, 1, p, row, rows);
}

extern "C" void mlp_update(const Batch* batch) {
  const Batch& b = *batch;
  // Whole items to a thread, so that the sums over an item's accounts have one writer.
  const int64_t per_unit = std::max<int64_t>(1, 2 * TILE / b.accounts), units = (b.items + per_unit - 1) / per_unit;
  std::fill(b.gradient, b.gradient + b.members * b.parameters, 0.0f);
  std::fill(b.figures, b.figures + b.members * 4, 0.0);
  for (int t = 0; t < 2; t++) std::fill(b.grad_base[t], b.grad_base[t] + b.members * b.items * b.width[0], 0.0f);
  const int threads = omp_get_max_threads();
  std::vector<std::vector<Towers>> partial(threads);  // added up in the order of the threads
  std::vector<std::vector<int64_t>> whose(threads);
#pragma omp parallel num_threads(threads)
  {
    Space space(b);
    auto &mine = partial[omp_get_thread_num()];
    auto &of = whose[omp_get_thread_num()];
#pragma omp for schedule(static)
    for (int64_t u = 0; u < b.members * units; u++) {
      const int64_t p = u / units, from = u % units * per_unit * b.accounts;
      const int64_t to = std::min(from + per_unit * b.accounts, b.items * b.accounts);
      if (of.empty() || of.back() != p) of.push_back(p), mine.emplace_back(b, p);
      for (int64_t row = from; row < to; row += TILE) tile(b, mine.back(), space, p, row, std::min(TILE, to - row));
    }
  }
  for (int i = 0; i < threads; i++)
    for (size_t j = 0; j < whose[i].size(); j++) partial[i][j].add_to(b, whose[i][j]);
  const double rows = double(b.items * b.accounts);
  for (int64_t p = 0; p < b.members; p++) {
    for (int i = 0; i < 4; i++) b.figures[p * 4 + i] /= rows;
    for (int64_t d = 0; d < b.actions; d++) b.gradient[p * b.parameters + b.log_std_at + d] -= b.entropy[p];
  }
}

// What tower t says for every row: out [members, items, accounts, outputs].
extern "C" void mlp_forward(const Batch* batch, int64_t t, float* out) {
  const Batch& b = *batch;
  const int64_t rows = b.items * b.accounts, tiles = (rows + TILE - 1) / TILE;
  const int64_t outputs = t ? 1 : b.actions, wide = padded(outputs);
  std::vector<Towers> towers;
  for (int64_t p = 0; p < b.members; p++) towers.emplace_back(b, p);
#pragma omp parallel if (b.members * rows > TILE)
  {
    Space space(b);
#pragma omp for schedule(static)
    for (int64_t u = 0; u < b.members * tiles; u++) {
      const int64_t p = u / tiles, row = u % tiles * TILE, count = std::min(TILE, rows - row);
      forward(b, towers[p], space, int(t), p, row, count);
      const float* made = space.made[t][b.layers - 1].data();
      for (int64_t r = 0; r < count; r++)
        std::copy(made + r * wide, made + r * wide + outputs, out + (p * rows + row + r) * outputs);
    }
  }
}
