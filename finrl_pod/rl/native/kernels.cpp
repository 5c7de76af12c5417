// Operations of the policies in float32 on the CPU: tanh of a sum and the scores of assets, forward and backward, and
// steps of Adam. The torch versions in kernels.py and rl/training are the definition; `tests/rl/test_kernels.py`
// compares them. Sums over rows run in chunks of a fixed size, so that results do not depend on the number of threads.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "adam.h"
#include "simd.h"

constexpr int W = 8;
constexpr int64_t CHUNK = 64;   // rows summed at a time
constexpr int64_t PART = 4096;  // parameters updated at a time
typedef vec<float, W> V;

static inline V load_tail(const float* from, int count) {
  V x = {};
  for (int i = 0; i < count; i++) x[i] = from[i];
  return x;
}
static inline void store_tail(float* to, V x, int count) {
  for (int i = 0; i < count; i++) to[i] = x[i];
}

// y [rows, width] = tanh(x [rows, width] + base [rows / each, width]).
extern "C" void tanh_of_sum(const float* x, const float* base, float* y, int64_t rows, int64_t each, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > MIN_PARALLEL_SIZE)
  for (int64_t r = 0; r < rows; r++) {
    const float *from = x + r * width, *add = base + r / each * width;
    float* to = y + r * width;
    int64_t i = 0;
    for (; i + W <= width; i += W) store<float, W>(to + i, tanh<W>(load<float, W>(from + i) + load<float, W>(add + i)));
    const int left = int(width - i);
    if (left) store_tail(to + i, tanh<W>(load_tail(from + i, left) + load_tail(add + i, left)), left);
  }
}

// From the output y [rows, width] and its gradient: the gradient of x, and, summed over `each` rows, of the base.
extern "C" void tanh_of_sum_backward(const float* y, const float* grad, float* grad_x, float* grad_base, int64_t rows,
                                     int64_t each, int64_t width) {
  const int64_t bases = rows / each, chunks = (each + CHUNK - 1) / CHUNK;
  std::vector<float> partial(chunks > 1 ? bases * chunks * width : 0);
#pragma omp parallel for schedule(static) if (rows * width > MIN_PARALLEL_SIZE)
  for (int64_t c = 0; c < bases * chunks; c++) {
    const int64_t from = c / chunks * each + c % chunks * CHUNK;
    const int64_t to = std::min(from + CHUNK, (c / chunks + 1) * each);
    float* total = chunks > 1 ? partial.data() + c * width : grad_base + c * width;
    std::fill(total, total + width, 0.0f);
    for (int64_t r = from; r < to; r++) {
      const float *out = y + r * width, *g = grad + r * width;
      float* gx = grad_x + r * width;
      int64_t i = 0;
      for (; i + W <= width; i += W) {
        const V o = load<float, W>(out + i), slope = load<float, W>(g + i) * (1.0f - o * o);
        store<float, W>(gx + i, slope);
        store<float, W>(total + i, load<float, W>(total + i) + slope);
      }
      for (; i < width; i++) total[i] += gx[i] = g[i] * (1 - out[i] * out[i]);
    }
  }
  if (chunks == 1) return;
  for (int64_t b = 0; b < bases; b++) {
    float* total = grad_base + b * width;
    std::fill(total, total + width, 0.0f);
    for (int64_t c = 0; c < chunks; c++)
      for (int64_t i = 0; i < width; i++) total[i] += partial[(b * chunks + c) * width + i];
  }
}

struct ScoreShape {
  int64_t rows, each, accounts, assets, width;  // rows of the table, of which `each` share a member's u and w
};

// scores [rows, accounts, assets] = sum over width of w * tanh(code [rows, assets, width] + holding [rows, accounts,
// assets] * u); u, w: [rows / each, width], width a multiple of 8.
extern "C" void asset_scores(const ScoreShape* shape, const float* code, const float* holding, const float* u,
                             const float* w, float* scores) {
  const auto [rows, each, accounts, assets, width] = *shape;
#pragma omp parallel for schedule(static) if (rows * accounts * assets * width > MIN_PARALLEL_SIZE)
  for (int64_t k = 0; k < rows; k++) {
    const float *mu = u + k / each * width, *mw = w + k / each * width;
    for (int64_t n = 0; n < assets; n++) {
      const float* c = code + (k * assets + n) * width;
      for (int64_t a = 0; a < accounts; a++) {
        const int64_t at = (k * accounts + a) * assets + n;
        const float h = holding[at];
        V total = {};
        for (int64_t i = 0; i < width; i += W)
          total += load<float, W>(mw + i) * tanh<W>(load<float, W>(c + i) + h * load<float, W>(mu + i));
        float sum = 0;
        for (int i = 0; i < W; i++) sum += total[i];
        scores[at] = sum;
      }
    }
  }
}

// From the gradient of the scores: those of code, of holding (unless null), and of u and w for each row [rows, width].
extern "C" void asset_scores_backward(const ScoreShape* shape, const float* code, const float* holding, const float* u,
                                      const float* w, const float* grad, float* grad_code, float* grad_holding,
                                      float* grad_u, float* grad_w) {
  const auto [rows, each, accounts, assets, width] = *shape;
#pragma omp parallel for schedule(static) if (rows * accounts * assets * width > MIN_PARALLEL_SIZE)
  for (int64_t k = 0; k < rows; k++) {
    const float *mu = u + k / each * width, *mw = w + k / each * width;
    float *gu = grad_u + k * width, *gw = grad_w + k * width;
    std::fill(gu, gu + width, 0.0f);
    std::fill(gw, gw + width, 0.0f);
    if (grad_holding) std::fill(grad_holding + k * accounts * assets, grad_holding + (k + 1) * accounts * assets, 0.0f);
    for (int64_t n = 0; n < assets; n++) {
      const float* c = code + (k * assets + n) * width;
      for (int64_t i = 0; i < width; i += W) {  // all accounts for eight units: the sums stay in registers
        const V ci = load<float, W>(c + i), ui = load<float, W>(mu + i), wi = load<float, W>(mw + i);
        V for_code = {}, for_u = {}, for_w = {};
        for (int64_t a = 0; a < accounts; a++) {
          const int64_t at = (k * accounts + a) * assets + n;
          const float h = holding[at], g = grad[at];
          const V t = tanh<W>(ci + h * ui), slope = g * wi * (1 - t * t);
          for_code += slope;
          for_u += slope * h;
          for_w += g * t;
          if (grad_holding) {
            const V back = slope * ui;
            float sum = 0;
            for (int j = 0; j < W; j++) sum += back[j];
            grad_holding[at] += sum;
          }
        }
        store<float, W>(grad_code + (k * assets + n) * width + i, for_code);
        store<float, W>(gu + i, load<float, W>(gu + i) + for_u);
        store<float, W>(gw + i, load<float, W>(gw + i) + for_w);
      }
    }
  }
}

// One step of Adam on [members, size]. rate: learning rate / (1 - beta_1^t); correction: sqrt(1 - beta_2^t), each
// [members]; a member whose `active` is 0 keeps parameters and moments (null: all are active).
extern "C" void adam(float* flat, const float* gradient, float* first, float* second, const float* rate,
                     const float* correction, const uint8_t* active, int64_t members, int64_t size, double beta_1,
                     double beta_2, double epsilon) {
  const int64_t parts = (size + PART - 1) / PART;
#pragma omp parallel for schedule(static) if (members * size > MIN_PARALLEL_SIZE)
  for (int64_t c = 0; c < members * parts; c++) {
    const FlushDenormals flush;
    const int64_t p = c / parts, start = c % parts * PART, from = p * size + start;
    if (active && !active[p]) continue;
    const AdamStep step{rate[p], correction[p], beta_1, beta_2, epsilon};
    adam_step<DIVIDE>(step, std::min(PART, size - start), gradient + from, 1, flat + from, first + from, second + from);
  }
}

// One step of Adam on the rows of members, `per_member` rows each: gradients are clipped to `limit` in the 2-norm, a
// member with a row whose norm or loss is not finite is no longer alive, and rows of members that are alive take the
// step. norm: [rows], before clipping. learning_rate: [rows].
extern "C" void adam_clipped(float* flat, const float* gradient, float* first, float* second, float* steps,
                             const float* learning_rate, const float* limit, const float* loss, uint8_t* alive,
                             float* norm, int64_t members, int64_t per_member, int64_t size,
                             double beta_1, double beta_2, double epsilon) {
  constexpr int64_t SUMS = 16;
  const int64_t rows = members * per_member, parts = (size + PART - 1) / PART;
#pragma omp parallel for schedule(static) if (rows > 1 && rows * size > MIN_PARALLEL_SIZE)
  for (int64_t r = 0; r < rows; r++) {
    const FlushDenormals flush;
    double total = 0;
    for (int64_t part = 0; part < parts; part++) {
      const int64_t from = r * size + part * PART, to = std::min(from + PART, (r + 1) * size);
      float sum[SUMS] = {0};
      int64_t i = from;
      for (; i + SUMS <= to; i += SUMS)
        for (int64_t j = 0; j < SUMS; j++) sum[j] += gradient[i + j] * gradient[i + j];
      for (; i < to; i++) sum[0] += gradient[i] * gradient[i];
      for (int64_t j = 0; j < SUMS; j++) total += sum[j];
    }
    norm[r] = float(std::sqrt(total));
  }
  for (int64_t r = 0; r < rows; r++)
    if (!std::isfinite(norm[r] + loss[r])) alive[r / per_member] = 0;
  for (int64_t r = 0; r < rows; r++)
    if (alive[r / per_member]) steps[r] += 1;
#pragma omp parallel for schedule(static) if (rows * size > MIN_PARALLEL_SIZE)
  for (int64_t c = 0; c < rows * parts; c++) {
    const FlushDenormals flush;
    const int64_t r = c / parts, start = c % parts * PART, from = r * size + start;
    if (!alive[r / per_member]) continue;
    const float scale = std::min(1.f, limit[r] / std::max(norm[r], 1e-12f));
    const AdamStep step = AdamStep::at(steps[r], learning_rate[r], beta_1, beta_2, epsilon);
    adam_step(step, std::min(PART, size - start), gradient + from, scale, flat + from, first + from, second + from);
  }
}
