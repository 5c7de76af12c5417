// The elementwise part of the policies on a CPU: tanh of a sum, and the scores of assets, forward and backward.
// The plain torch versions beside their callers are the definition; a test holds them together.
// Sums over rows run in chunks of a fixed size, so that results do not depend on the number of threads.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "simd.h"

constexpr int W = 8;
constexpr int64_t CHUNK = 64;            // rows that are summed in one go
constexpr int64_t WORTH_THREADS = 8192;  // numbers below which one thread is quicker
typedef lane<float, W> V;

static inline V tail_load(const float* from, int count) {
  V x = {};
  for (int i = 0; i < count; i++) x[i] = from[i];
  return x;
}
static inline void tail_store(float* to, V x, int count) {
  for (int i = 0; i < count; i++) to[i] = x[i];
}

// y [rows, width] = tanh(x [rows, width] + base [rows / each, width]).
extern "C" void tanh_of_sum(const float* x, const float* base, float* y, int64_t rows, int64_t each, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_THREADS)
  for (int64_t r = 0; r < rows; r++) {
    const float *from = x + r * width, *add = base + r / each * width;
    float* to = y + r * width;
    int64_t i = 0;
    for (; i + W <= width; i += W) store<float, W>(to + i, tangent<W>(load<float, W>(from + i) + load<float, W>(add + i)));
    const int left = int(width - i);
    if (left) tail_store(to + i, tangent<W>(tail_load(from + i, left) + tail_load(add + i, left)), left);
  }
}

// y [rows, width] = tanh(...); grad [rows, width] of y. Gives that of the sum, and, added over `each` rows, of the base.
extern "C" void tanh_of_sum_backward(const float* y, const float* grad, float* grad_x, float* grad_base, int64_t rows,
                                     int64_t each, int64_t width) {
  const int64_t bases = rows / each, chunks = (each + CHUNK - 1) / CHUNK;
  std::vector<float> partial(chunks > 1 ? bases * chunks * width : 0);
#pragma omp parallel for schedule(static) if (rows * width > WORTH_THREADS)
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

struct Shape {
  int64_t rows, each, accounts, assets, width;  // rows of the table, of which `each` share a member's u and w
};

// scores [rows, accounts, assets] = sum over width of w * tanh(code [rows, assets, width] + holding [rows, accounts,
// assets] * u); u, w: [rows / each, width], width a multiple of 8.
extern "C" void asset_scores(const Shape* shape, const float* code, const float* holding, const float* u, const float* w,
                             float* scores) {
  const auto [rows, each, accounts, assets, width] = *shape;
#pragma omp parallel for schedule(static) if (rows * accounts * assets * width > WORTH_THREADS)
  for (int64_t k = 0; k < rows; k++) {
    const float *mu = u + k / each * width, *mw = w + k / each * width;
    for (int64_t n = 0; n < assets; n++) {
      const float* c = code + (k * assets + n) * width;
      for (int64_t a = 0; a < accounts; a++) {
        const int64_t at = (k * accounts + a) * assets + n;
        const float h = holding[at];
        V total = {};
        for (int64_t i = 0; i < width; i += W)
          total += load<float, W>(mw + i) * tangent<W>(load<float, W>(c + i) + h * load<float, W>(mu + i));
        float sum = 0;
        for (int i = 0; i < W; i++) sum += total[i];
        scores[at] = sum;
      }
    }
  }
}

// grad: of the scores. Gives the gradients of code and holding, and of u and w for each row: [rows, width].
extern "C" void asset_scores_backward(const Shape* shape, const float* code, const float* holding, const float* u,
                                      const float* w, const float* grad, float* grad_code, float* grad_holding,
                                      float* grad_u, float* grad_w) {
  const auto [rows, each, accounts, assets, width] = *shape;
#pragma omp parallel for schedule(static) if (rows * accounts * assets * width > WORTH_THREADS)
  for (int64_t k = 0; k < rows; k++) {
    const float *mu = u + k / each * width, *mw = w + k / each * width;
    float *gu = grad_u + k * width, *gw = grad_w + k * width;
    std::fill(gu, gu + width, 0.0f);
    std::fill(gw, gw + width, 0.0f);
    if (grad_holding)
      std::fill(grad_holding + k * accounts * assets, grad_holding + (k + 1) * accounts * assets, 0.0f);
    for (int64_t n = 0; n < assets; n++) {
      const float* c = code + (k * assets + n) * width;
      for (int64_t i = 0; i < width; i += W) {  // all accounts for eight units: the sums stay in registers
        const V ci = load<float, W>(c + i), ui = load<float, W>(mu + i), wi = load<float, W>(mw + i);
        V for_code = {}, for_u = {}, for_w = {};
        for (int64_t a = 0; a < accounts; a++) {
          const int64_t at = (k * accounts + a) * assets + n;
          const float h = holding[at], g = grad[at];
          const V t = tangent<W>(ci + h * ui), slope = g * wi * (1 - t * t);
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

// One step of Adam on [members, size] in one pass. rate: learning rate / (1 - decay_1^t); spread: sqrt(1 - decay_2^t);
// a member that does not move keeps its moments.
extern "C" void adam(float* flat, const float* gradient, float* first, float* second, const float* rate,
                     const float* spread, const uint8_t* moves, int64_t members, int64_t size, double decay_1,
                     double decay_2, double epsilon) {
  constexpr int64_t PART = 4096;
  const int64_t parts = (size + PART - 1) / PART;
  const float d1 = float(1 - decay_1), keep = float(decay_2), d2 = float(1 - decay_2), least = float(epsilon);
#pragma omp parallel for schedule(static) if (members * size > WORTH_THREADS)
  for (int64_t c = 0; c < members * parts; c++) {
    const TinyIsZero flush;
    const int64_t p = c / parts, from = p * size + c % parts * PART;
    const int64_t to = std::min(from + PART, (p + 1) * size);
    if (moves && !moves[p]) continue;
    const float step = rate[p], over = spread[p];
#pragma omp simd
    for (int64_t i = from; i < to; i++) {
      const float g = gradient[i], m = first[i] + d1 * (g - first[i]), v = keep * second[i] + d2 * g * g;
      first[i] = m;
      second[i] = v;
      flat[i] -= step * m / (std::sqrt(v) / over + least);
    }
  }
}

// Clips, judges and steps the rows of members at once, `per` rows each: gradients are scaled to at most `limit` in the
// 2-norm, a member with a row whose norm or loss is no number is no longer alive, and the rows of those that are take a
// step of Adam. norm: [rows], before it was clipped.
extern "C" void adam_clipped(float* flat, const float* gradient, float* first, float* second, float* steps,
                             const float* rate, const float* limit, const float* loss, uint8_t* alive, float* norm,
                             int64_t members, int64_t per, int64_t size, double factor, double decay_1, double decay_2,
                             double epsilon) {
  constexpr int64_t PART = 4096, SUMS = 16;
  const int64_t rows = members * per, parts = (size + PART - 1) / PART;
  const float d1 = float(1 - decay_1), keep = float(decay_2), d2 = float(1 - decay_2), least = float(epsilon);
#pragma omp parallel for schedule(static) if (rows > 1 && rows * size > WORTH_THREADS)
  for (int64_t r = 0; r < rows; r++) {
    const TinyIsZero flush;
    double whole = 0;
    for (int64_t part = 0; part < parts; part++) {
      const int64_t from = r * size + part * PART, to = std::min(from + PART, (r + 1) * size);
      float sum[SUMS] = {0};
      int64_t i = from;
      for (; i + SUMS <= to; i += SUMS)
        for (int64_t j = 0; j < SUMS; j++) sum[j] += gradient[i + j] * gradient[i + j];
      for (; i < to; i++) sum[0] += gradient[i] * gradient[i];
      for (int64_t j = 0; j < SUMS; j++) whole += sum[j];
    }
    norm[r] = float(std::sqrt(whole));
  }
  for (int64_t r = 0; r < rows; r++)
    if (!std::isfinite(norm[r] + loss[r])) alive[r / per] = 0;
  for (int64_t r = 0; r < rows; r++)
    if (alive[r / per]) steps[r] += 1;
#pragma omp parallel for schedule(static) if (rows * size > WORTH_THREADS)
  for (int64_t c = 0; c < rows * parts; c++) {
    const TinyIsZero flush;
    const int64_t r = c / parts, from = r * size + c % parts * PART, to = std::min(from + PART, (r + 1) * size);
    if (!alive[r / per]) continue;
    const float scale = std::min(1.f, limit[r] / std::max(norm[r], 1e-12f));
    const float step = float(rate[r] * factor / (1 - std::pow(decay_1, double(steps[r]))));
    const float over = float(1 / std::sqrt(1 - std::pow(decay_2, double(steps[r]))));
#pragma omp simd
    for (int64_t i = from; i < to; i++) {
      const float g = scale * gradient[i], m = first[i] + d1 * (g - first[i]), v = keep * second[i] + d2 * g * g;
      first[i] = m;
      second[i] = v;
      flat[i] -= step * m / (std::sqrt(v) * over + least);
    }
  }
}
