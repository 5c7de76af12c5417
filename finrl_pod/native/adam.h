// Adam (Kingma and Ba 2015): the one update rule of all kernels. The definition is `rl/optimisation/optimiser.py: Adam`.
#pragma once
#include <cmath>
#include <cstdint>

// How a bias correction sqrt(1 - beta_2^t) enters the denominator: kernels that compute it multiply by its reciprocal;
// the one that takes it from torch divides, to round as torch does.
enum BiasCorrection { MULTIPLY, DIVIDE };

// The constants of one step of one row of parameters.
struct AdamStep {
  float rate;        // learning rate / (1 - beta_1^t)
  float correction;  // 1 / sqrt(1 - beta_2^t), or its reciprocal where it divides
  float gain_1, beta_2, gain_2, epsilon;

  AdamStep(float rate, float correction, double beta_1, double beta_2, double epsilon)
      : rate(rate),
        correction(correction),
        gain_1(float(1 - beta_1)),
        beta_2(float(beta_2)),
        gain_2(float(1 - beta_2)),
        epsilon(float(epsilon)) {}

  // t: steps taken, this one included.
  static AdamStep at(double t, double learning_rate, double beta_1, double beta_2, double epsilon) {
    const float rate = float(learning_rate / (1 - std::pow(beta_1, t)));
    return {rate, float(1 / std::sqrt(1 - std::pow(beta_2, t))), beta_1, beta_2, epsilon};
  }
};

// One step of `count` parameters in place, with the gradient multiplied by `scale`.
template <BiasCorrection CORRECTION = MULTIPLY>
static inline void adam_step(const AdamStep& step, int64_t count, const float* gradient, float scale, float* params,
                             float* first, float* second) {
  const auto [rate, correction, gain_1, beta_2, gain_2, epsilon] = step;
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    const float g = scale * gradient[i];
    const float m = first[i] + gain_1 * (g - first[i]), v = beta_2 * second[i] + gain_2 * g * g;
    first[i] = m;
    second[i] = v;
    const float root = CORRECTION == DIVIDE ? std::sqrt(v) / correction : std::sqrt(v) * correction;
    params[i] -= rate * m / (root + epsilon);
  }
}
