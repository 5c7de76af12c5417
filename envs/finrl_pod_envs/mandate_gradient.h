// The weights that a mandate decides on for one account, and their adjoint. `tilted` and `trade_towards` in
// `finrl_pod/market/mandate.py` define them.
//
// Rows are padded to whole vectors, with assets of price 1 that are tradable and have a weight of 0.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "market.h"
#include "simd.h"

template <class T, int W>
struct MandateAccount {
  typedef vec<T, W> V;
  const Market& m;
  const int n, count;  // assets, and vectors of a row
  std::vector<T> space;
  T *base, *price_relative, *tradable;  // of the bar; price_relative: next close / close
  T *planned, *tilted, *bend,
      *next;  // of the account: virtual holdings, tilted base, tanh(scores), gradient of results
  T base_sum, speed;
  bool decides;
  // Of the account; `trade_towards` explains them. bounded: equity; keeps: no trades; enters: buys the base at once.
  T equity, bounded, blocked, investable, mass, share, left, available, kept;
  bool keeps, enters;

  explicit MandateAccount(const Market& market)
      : m(market), n(int(market.assets)), count((n + W - 1) / W), space(7 * count * W) {
    T** rows[] = {&base, &price_relative, &tradable, &planned, &tilted, &bend, &next};
    for (int i = 0; i < 7; i++) *rows[i] = space.data() + i * count * W;
  }

  V vector(const T* row, int k) const { return load<T, W>(row + k * W); }
  void set_vector(T* row, int k, V x) const { store<T, W>(row + k * W, x); }
  void read(T* row, const T* from, T rest) const {
    std::copy(from, from + n, row);
    std::fill(row + n, row + count * W, rest);
  }
  static T sum(V x) {
    T total = 0;
    for (int i = 0; i < W; i++) total += x[i];
    return total;
  }

  void begin_bar(int64_t bar, const T* close, const T* close_next) {
    read(base, static_cast<const T*>(m.mandate.base) + bar * n, 0);
    std::fill(tradable, tradable + count * W, T(1));
    if (m.tradable) read(tradable, static_cast<const T*>(m.tradable) + bar * n, 1);
    V total = {};
    for (int k = 0; k < count; k++) {
      set_vector(price_relative, k, vector(close_next, k) / vector(close, k));
      total += vector(base, k);
    }
    base_sum = sum(total);
    decides = m.mandate.decides[bar];
    speed = decides ? T(m.mandate.trade_speed) : 0;
  }

  // Writes the weights decided. scores, holdings: N numbers each; shares, close, weight: rows.
  void decide(const T* scores, const T* holdings, const T* shares, const T* close, T cash, T* weight) {
    const T smallest = std::numeric_limits<T>::min();
    read(planned, holdings, 0);
    read(bend, scores, 0);
    V masses = {}, values = {}, stuck = {}, planned_sum = {}, left_sum = {}, freed = {};
    for (int k = 0; k < count; k++) {
      const V t = tanh<W>(vector(bend, k)), mass_k = vector(base, k) * tilt_factor<T, W>(t, m.mandate.tilt);
      const V value = vector(shares, k) * vector(close, k), v = vector(planned, k), can = vector(tradable, k);
      set_vector(bend, k, t);
      set_vector(tilted, k, mass_k);
      masses += mass_k;
      values += value;
      planned_sum += v;
      stuck += can != 0 ? V{} : value;
      left_sum += can != 0 ? v : V{};
      freed += (can == 0) & (v != 0) & (value == 0) ? broadcast<T, W>(1) : V{};
    }
    const T value = sum(values), total = sum(planned_sum);
    equity = cash + value;
    bounded = std::max(equity, T(1e-9));
    blocked = sum(stuck) / bounded;
    investable = std::max(T(m.leverage) - blocked, T(0));
    mass = std::max(sum(masses), smallest);
    share = base_sum * investable / mass;
    left = sum(left_sum);
    available = std::max(total - blocked, T(0));
    kept = available / (left > 0 ? left : 1);
    enters = value == 0 || !(left > 0);
    keeps = !decides && value != 0 && sum(freed) == 0;
    for (int k = 0; k < count; k++) {
      const V before = enters ? vector(base, k) * investable : vector(planned, k) * kept;
      const V now = before * (1 - speed) + vector(tilted, k) * (share * speed);
      const V held = vector(shares, k) * vector(close, k) / bounded;
      set_vector(weight, k, vector(tradable, k) != 0 ? now : held);
    }
  }

  // Next equity over equity, from close to close, the next close, at these weights.
  T growth_factor(const T* weight) const {
    V gain = {};
    for (int k = 0; k < count; k++) gain += vector(weight, k) * (vector(price_relative, k) - 1);
    return 1 + sum(gain);
  }
  // Writes the virtual holdings [N] at the next close.
  void drift(const T* weight, T* holdings) const {
    const T unit = 1 / std::max(growth_factor(weight), T(1e-9));
    for (int i = 0; i < n; i++) holdings[i] = weight[i] * price_relative[i] * unit;
  }

  // The adjoint of `decide` and `drift`, after `decide`. g_weight: gradient of the weights; g_drifted: [N] of the
  // virtual holdings at the next close, or null. Adds to `g_shares`, writes `g_scores` and `g_holdings` [N], and
  // returns the gradient of equity.
  T adjoint(const T* weight, V* g_weight, const T* g_drifted, const T* close, T* g_shares, T* g_scores, T* g_holdings) {
    if (g_drifted) undrift(weight, g_weight, g_drifted);
    const T rest = 1 - speed, smallest = std::numeric_limits<T>::min();
    V by_share = {}, by_before = {}, by_stuck = {};
    for (int k = 0; k < count; k++) {
      const V g = g_weight[k], free = vector(tradable, k) != 0 ? g : V{};
      by_share += free * speed * vector(tilted, k);
      by_before += free * rest * (enters ? vector(base, k) : vector(planned, k));
      by_stuck += (g - free) * vector(weight, k);
    }
    const T g_share = sum(by_share), g_before = sum(by_before);
    const T g_mass = mass > smallest ? -g_share * share / mass : 0;
    const T g_investable = g_share * base_sum / mass + (enters ? g_before : 0);
    const T g_left = enters ? 0 : -g_before * kept / left;
    const T g_planned = enters || !(available > 0) ? 0 : g_before / left;
    const T g_blocked = -g_planned - (investable > 0 ? g_investable : 0);
    for (int k = 0; k < count; k++) {
      const V g = g_weight[k], t = vector(bend, k), can = vector(tradable, k), free = can != 0 ? g : V{};
      const V g_tilted = free * speed * share + g_mass;
      set_vector(bend, k, g_tilted * vector(tilted, k) * (1 - t * t) * T(m.mandate.tilt));
      const V g_kept = enters ? V{} : (can != 0 ? g * rest * kept + g_left : V{});
      set_vector(planned, k, g_kept + g_planned);
      const V g_held = can != 0 ? V{} : (g + g_blocked) / bounded;
      set_vector(g_shares, k, vector(g_shares, k) + g_held * vector(close, k));
    }
    std::copy(bend, bend + n, g_scores);
    std::copy(planned, planned + n, g_holdings);
    return equity > T(1e-9) ? -(sum(by_stuck) + g_blocked * blocked) / bounded : 0;
  }

 private:
  void undrift(const T* weight, V* g_weight, const T* g_drifted) {
    read(next, g_drifted, 0);
    const T factor = growth_factor(weight), unit = 1 / std::max(factor, T(1e-9));
    V by_unit = {};
    for (int k = 0; k < count; k++) by_unit += vector(next, k) * vector(weight, k) * vector(price_relative, k);
    const T g_factor = factor > T(1e-9) ? -sum(by_unit) * unit * unit : 0;
    for (int k = 0; k < count; k++)
      g_weight[k] += vector(next, k) * vector(price_relative, k) * unit + g_factor * (vector(price_relative, k) - 1);
  }
};
