// Accounts that follow a policy over many bars of a market without a call for each bar. The policy is a sum of scores
// that depend on the market alone and of `asset_scores` of rl/native/kernels.cpp. `run_members` in rl/acting.py and a
// backtest of an ensemble are the definitions; `tests/envs/test_member_accounts.py` compares them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "mandate.h"

// Scores of `members` at every bar: linear, plus those of the holdings if there is a code.
struct Scorer {
  int64_t members, width;
  const float *linear, *code;             // [bars, members, N], [bars, members, N, width]; null: no code
  const float *holding_w, *score_w;       // [members, width]
};

struct ScorerShape {  // as `ScoreShape` of rl/native/kernels.cpp
  int64_t rows, each, accounts, assets, width;
};
typedef void (*AssetScores)(const ScorerShape*, const float* code, const float* holding, const float* u, const float* w,
                            float* scores);

struct Rollout {
  int64_t bars, rows, scorers, keeps_scores;  // rows: one for each account, or for each member of an ensemble
  const void *scorer, *asset_scores;          // [scorers] of Scorer; function of rl/native/kernels.cpp, or null
  const double* shares;                       // [rows] of an ensemble that one account follows; null without one
  const void* account;                        // [accounts, 1 + N] before the first decision
  float *relative, *scores;                   // [rows, N], working space; [bars, rows, N] if they are kept, else [rows, N]
  double* score_sums;                         // [rows]: not finite if a score ever is not
  void* action;                               // [accounts, N] in the dtype of the accounts
  void *equity, *turnover, *cost;             // [bars, accounts]
  void *accounts, *virtual_holdings;  // [bars, accounts, 1 + N] and [bars, accounts, N] before each decision, or null
};

constexpr double SPREAD_TOLERANCE = 1e-9;  // TILT_TOLERANCE in mandate.py
constexpr double HIGHEST_SCORE = 20;       // LARGEST_SCORE in mandate.py

// base * exp(tilt * tanh(scores)) of the assets from `first` to the last whole vector before `stop`.
template <class T, int W>
static void tilted_base(const Mandate& mandate, const float* scores, const T* base, int64_t first, int64_t stop,
                        double* mass) {
  for (int64_t i = first; i + W <= stop; i += W) {
    vec<double, W> score, weight;
    for (int k = 0; k < W; k++) score[k] = scores[i + k], weight[k] = base[i + k];
    store<double, W>(mass + i, weight * tilt_factor<double, W>(tanh<W>(score), mandate.tilt));
  }
}

// Scores of an account that tilt the base to the mean of what the members desire, as `scores_of` of mandate.py gives
// them; false if no scores do. Sums to investable money are equal for all members and left out.
template <class T>
static bool mean_scores(const Mandate& mandate, const Rollout& r, const float* scores, const T* base, int64_t n,
                        T* action) {
  double mean[n], mass[n];
  std::fill(mean, mean + n, 0.0);
  for (int64_t row = 0; row < r.rows; row++) {
    tilted_base<T, 4>(mandate, scores + row * n, base, 0, n, mass);
    tilted_base<T, 1>(mandate, scores + row * n, base, n - n % 4, n, mass);
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += mass[i];
    const double share = total > 0 ? r.shares[row] / total : 0;
    for (int64_t i = 0; i < n; i++) mean[i] += share * mass[i];
  }
  double highest = -INFINITY, lowest = INFINITY;
  for (int64_t i = 0; i < n; i++) {
    if (!std::isfinite(mean[i])) return false;
    const bool tilts = base[i] > 0 && mean[i] > 0;
    mass[i] = tilts ? std::log(mean[i] / base[i]) : NAN;
    if (!tilts) continue;
    highest = std::max(highest, mass[i]);
    lowest = std::min(lowest, mass[i]);
  }
  if (mandate.tilt > 0 && highest - lowest > 2 * mandate.tilt + SPREAD_TOLERANCE) return false;
  for (int64_t i = 0; i < n; i++) {
    action[i] = 0;
    if (!(mandate.tilt > 0) || std::isnan(mass[i])) continue;
    const double share = (mass[i] - (highest + lowest) / 2) / mandate.tilt;
    const double score = std::atanh(std::min(std::max(share, -1.0), 1.0));
    action[i] = T(std::min(std::max(score, -HIGHEST_SCORE), HIGHEST_SCORE));
  }
  return true;
}

// Scores [rows, N] at bar k of a rollout of accounts [accounts, 1 + N].
template <class T>
static void score_rows(const Rollout& r, int64_t k, const T* account, int64_t n, float* scores) {
  for (int64_t row = 0; row < r.rows; row++) {
    const T* held = account + (r.shares ? 0 : row) * (n + 1) + 1;
    for (int64_t i = 0; i < n; i++) r.relative[row * n + i] = float(held[i]) * float(n);
  }
  int64_t row = 0;
  for (int64_t c = 0; c < r.scorers; c++) {
    const Scorer& scorer = static_cast<const Scorer*>(r.scorer)[c];
    const int64_t size = scorer.members * n;
    const float* linear = scorer.linear + k * size;
    float* to = scores + row * n;
    std::fill(to, to + size, 0.0f);
    if (scorer.code) {
      const ScorerShape shape{scorer.members, 1, 1, n, scorer.width};
      const auto asset_scores = reinterpret_cast<AssetScores>(const_cast<void*>(r.asset_scores));
      asset_scores(&shape, scorer.code + k * size * scorer.width, r.relative + row * n, scorer.holding_w,
                   scorer.score_w, to);
    }
    for (int64_t i = 0; i < size; i++) to[i] += linear[i];
    row += scorer.members;
  }
  for (row = 0; row < r.rows; row++)
    for (int64_t i = 0; i < n; i++) r.score_sums[row] += scores[row * n + i];
}
