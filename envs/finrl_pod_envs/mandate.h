// What the kernels of the market environments know of a mandate; `finrl_pod/market/mandate.py` defines it.
#pragma once
#include <cstdint>

#include "simd.h"

struct Mandate {
  double tilt, trade_speed, max_weight;
  double full_budget, budget_per_bar;  // of turnover
  const void* base;                    // [T, N] weights in the dtype of the accounts; null: no mandate
  const uint8_t* decides;              // [T]
};

// exp(tilt * x) for |x| <= 1. A tilt is at most 10.
template <class T, int W>
static inline vec<T, W> tilt_factor(vec<T, W> x, double tilt) {
  return exp2_in_range<W>(x * T(tilt * 1.4426950408889634));  // log2(e)
}
