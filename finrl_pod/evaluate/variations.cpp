// Replays target weights through proportional accounting: long-only accounts, fractions of shares, buys scaled by one
// factor. The definition is `simulate` with the accounting of finrl_pod/market/execution.py;
// `tests/evaluate/test_variations.py` compares the two. Accounts are independent, each is one job; four jobs over the
// same bars run together, one in each number of a vector.
#include <omp.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "simd.h"

constexpr int64_t LANES = 4;  // jobs that run together
typedef vec<double, LANES> V;
typedef vec<int64_t, LANES> Mask;  // -1 where true

struct ReplayMarket {
  const double *close, *inverse, *fill;               // [T, N]; inverse: 1 / close
  const double* half_spread;                          // [T, N], as a fraction of the fill price; null if no job pays it
  const uint8_t *fillable, *delisted, *all_fillable;  // [T, N], [T, N], [T]
  int64_t bars, assets, same_close;
};

struct ReplayJobs {
  const void* tables;                     // [W, T, N] target weights, rows of NaN without a decision
  const int64_t* spans;                   // [count, 3]: table, first and last bar
  const double *rates, *quoted;           // [count]: proportional cost; 1 where half spreads are paid, else 0
  double *equity, *turnover, *costs;      // [count, marks], [count], [count]
  int64_t single, count, marks, threads;  // single: the tables are float32, not float64
  double cash, tolerance;                 // tolerance: of the sum and the sign of weights
};

static inline V load_weights(const double* from) { return load<double, LANES>(from); }
static inline V load_weights(const float* from) { return __builtin_convertvector((load<float, LANES>(from)), V); }
static inline bool any(Mask mask) { return mask[0] | mask[1] | mask[2] | mask[3]; }

// Four rows of four assets become four assets with the four rows in their numbers.
static inline void transpose(V (&v)[LANES]) {
  const V a = SHUFFLE(v[0], v[1], Mask, 0, 4, 2, 6), b = SHUFFLE(v[0], v[1], Mask, 1, 5, 3, 7);
  const V c = SHUFFLE(v[2], v[3], Mask, 0, 4, 2, 6), d = SHUFFLE(v[2], v[3], Mask, 1, 5, 3, 7);
  v[0] = SHUFFLE(a, c, Mask, 0, 1, 4, 5), v[1] = SHUFFLE(b, d, Mask, 0, 1, 4, 5);
  v[2] = SHUFFLE(a, c, Mask, 2, 3, 6, 7), v[3] = SHUFFLE(b, d, Mask, 2, 3, 6, 7);
}

// The accounts of up to four jobs.
template <class W>
struct Accounts {
  const W* weights[LANES];  // tables of the jobs, at bar 0
  double* curve[LANES];     // equity of the jobs
  double *shares, *target;  // [N, LANES]
  V cash, equity, rate{}, quoted{}, turnover{}, costs{}, lowest_weight{};
  Mask faulty{};  // the sum of the weights exceeded 1
};

// Sums over the assets of one bar, in currency but for `weight`.
struct Sums {
  V bought{}, net{}, held{}, next_value{}, weight{};
  V buy_spreads{}, net_spreads{};  // half spreads of the trades that `bought` and `net` sum up
};

// One asset of one bar. CHECKED: some account has no decision, or some asset may not be able to fill. SPREADS: some job
// pays half spreads.
template <bool CHECKED, bool SPREADS>
static inline void trade_asset(const ReplayMarket& m, int64_t t, int64_t i, V weight, V equity, Mask undecided,
                               const double* shares, double* target, V& lowest_weight, Sums& sums) {
  const V price = broadcast<double, LANES>(m.fill[t * m.assets + i]), held = load<double, LANES>(shares + i * LANES);
  if (CHECKED) weight = undecided ? V{} : weight;
  V desired = equity * broadcast<double, LANES>(m.inverse[t * m.assets + i]) * weight;
  if (CHECKED) {
    desired = undecided ? held : desired;
    if (!m.fillable[t * m.assets + i]) desired = m.delisted[t * m.assets + i] ? V{} : held;
  }
  const V trade = desired - held;
  store<double, LANES>(target + i * LANES, desired);
  sums.bought += max(trade, V{}) * price;
  sums.net += trade * price;
  if (SPREADS) {
    const V half_spread = price * broadcast<double, LANES>(m.half_spread[t * m.assets + i]);
    sums.buy_spreads += max(trade, V{}) * half_spread;
    sums.net_spreads += trade * half_spread;
  }
  sums.held += held * price;
  sums.next_value += desired * broadcast<double, LANES>(m.close[(t + 1) * m.assets + i]);
  sums.weight += weight;
  lowest_weight = min(weight, lowest_weight);
}

template <bool CHECKED, bool SPREADS, class W>
static inline Sums trade_assets(const ReplayMarket& m, const Accounts<W>& a, int64_t t, Mask undecided,
                                V& lowest_weight) {
  const int64_t n = m.assets, whole = n / LANES * LANES;
  const W* row[LANES];
  for (int64_t k = 0; k < LANES; ++k) row[k] = a.weights[k] + t * n;
  Sums sums;
  for (int64_t i = 0; i < whole; i += LANES) {
    V w[LANES] = {load_weights(row[0] + i), load_weights(row[1] + i), load_weights(row[2] + i),
                  load_weights(row[3] + i)};
    transpose(w);
    for (int64_t k = 0; k < LANES; ++k)
      trade_asset<CHECKED, SPREADS>(m, t, i + k, w[k], a.equity, undecided, a.shares, a.target, lowest_weight, sums);
  }
  for (int64_t i = whole; i < n; ++i) {
    const V w{double(row[0][i]), double(row[1][i]), double(row[2][i]), double(row[3][i])};
    trade_asset<CHECKED, SPREADS>(m, t, i, w, a.equity, undecided, a.shares, a.target, lowest_weight, sums);
  }
  return sums;
}

// Decision and fills of bar t; the equity at its close and the next is written to places `mark` and `mark + 1`.
template <class W>
static inline void step(const ReplayMarket& m, Accounts<W>& a, int64_t t, int64_t mark, double tolerance) {
  const int64_t n = m.assets;
  Mask undecided{};
  for (int64_t k = 0; k < LANES; ++k) undecided[k] = std::isnan(a.weights[k][t * n]) ? -1 : 0;
  V lowest_weight = a.lowest_weight;
  const bool checked = any(undecided) || !m.all_fillable[t];
  Sums sums = m.half_spread ? trade_assets<true, true>(m, a, t, undecided, lowest_weight)
              : checked     ? trade_assets<true, false>(m, a, t, undecided, lowest_weight)
                            : trade_assets<false, false>(m, a, t, undecided, lowest_weight);
  a.lowest_weight = lowest_weight;
  a.faulty |= ~(sums.weight <= broadcast<double, LANES>(1 + tolerance));
  const V proceeds = max(sums.bought - sums.net, V{}), before = a.cash + sums.held;
  const V sale_spreads = max(sums.buy_spreads - sums.net_spreads, V{}) * a.quoted;
  const V funds = a.cash + proceeds * (1 - a.rate) - sale_spreads;
  V buy_spreads = sums.buy_spreads * a.quoted;
  const V needed = sums.bought * (1 + a.rate) + buy_spreads;
  const Mask limited = needed > funds;  // all buys are scaled by one factor
  V spent = sums.bought;
  if (any(limited)) {
    const V scale = limited ? max(funds, V{}) / needed : broadcast<double, LANES>(1);
    sums.next_value = V{};
    for (int64_t i = 0; i < n; ++i) {
      const V held = load<double, LANES>(a.shares + i * LANES), desired = load<double, LANES>(a.target + i * LANES);
      const V trade = desired - held, filled = trade > 0 ? held + trade * scale : desired;
      store<double, LANES>(a.target + i * LANES, filled);
      sums.next_value += filled * broadcast<double, LANES>(m.close[(t + 1) * n + i]);
    }
    spent *= scale;
    buy_spreads *= scale;
  }
  std::swap(a.shares, a.target);
  a.cash = max(funds - spent * (1 + a.rate) - buy_spreads, min(V{}, funds));
  const V traded = proceeds + spent;
  a.turnover += before > 0 ? traded / before : V{};
  a.costs += traded * a.rate + sale_spreads + buy_spreads;
  a.equity = a.cash + sums.next_value;
  const V after = a.cash + sums.held + spent - proceeds;
  for (int64_t k = 0; k < LANES; ++k) {
    if (m.same_close) a.curve[k][mark] = after[k];  // filled at this close, so marked after the fill
    a.curve[k][mark + 1] = a.equity[k];
  }
}

// Up to four jobs over the same bars; spare numbers of the vectors repeat the first job and write into `unused`.
template <class W>
static void run_together(const ReplayMarket& m, const ReplayJobs& jobs, const int64_t* indices, int64_t count,
                         std::vector<uint8_t>& faulty) {
  std::vector<double> memory(2 * LANES * m.assets, 0.0), unused(jobs.marks);
  const V cash = broadcast<double, LANES>(jobs.cash);
  Accounts<W> a{{}, {}, memory.data(), memory.data() + LANES * m.assets, cash, cash};
  const int64_t *first_span = jobs.spans + 3 * indices[0], first = first_span[1], last = first_span[2];
  for (int64_t k = 0; k < LANES; ++k) {
    const int64_t job = indices[k < count ? k : 0];
    a.weights[k] = static_cast<const W*>(jobs.tables) + jobs.spans[3 * job] * m.bars * m.assets;
    a.rate[k] = jobs.rates[job], a.quoted[k] = jobs.quoted[job];
    a.curve[k] = k < count ? jobs.equity + job * jobs.marks : unused.data();
    a.curve[k][0] = jobs.cash;
  }
  for (int64_t t = first; t < last; ++t) step(m, a, t, t - first, jobs.tolerance);
  a.faulty |= ~(a.lowest_weight >= broadcast<double, LANES>(-jobs.tolerance));
  for (int64_t k = 0; k < count; ++k) {
    jobs.turnover[indices[k]] = a.turnover[k], jobs.costs[indices[k]] = a.costs[k];
    faulty[indices[k]] = a.faulty[k] != 0;
  }
}

template <class W>
static int64_t run(const ReplayMarket& m, const ReplayJobs& jobs) {
  std::vector<int64_t> order(jobs.count), starts;
  std::vector<uint8_t> faulty(jobs.count);
  std::iota(order.begin(), order.end(), 0);
  const auto first = [&](int64_t job) { return jobs.spans[3 * job + 1]; };
  const auto last = [&](int64_t job) { return jobs.spans[3 * job + 2]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return first(a) != first(b) ? first(a) < first(b) : last(a) < last(b);
  });
  for (int64_t v = 0; v < jobs.count; ++v) {
    const bool full = !starts.empty() && v - starts.back() == LANES;
    if (v == 0 || full || first(order[v]) != first(order[v - 1]) || last(order[v]) != last(order[v - 1]))
      starts.push_back(v);
  }
  starts.push_back(jobs.count);
  const int64_t groups = starts.size() - 1;
#pragma omp parallel for schedule(dynamic) num_threads(int(jobs.threads))
  for (int64_t g = 0; g < groups; ++g) run_together<W>(m, jobs, &order[starts[g]], starts[g + 1] - starts[g], faulty);
  for (int64_t v = 0; v < jobs.count; ++v)
    if (faulty[v]) return v;
  return -1;
}

// Returns the first job whose target weights break a rule, or -1.
extern "C" int64_t replay(const ReplayMarket* market, const ReplayJobs* jobs) {
  return jobs->single ? run<float>(*market, *jobs) : run<double>(*market, *jobs);
}
