// One step of a market environment on the CPU; an account stays in registers from its trades to its reward. The
// reference is MarketEnv.transition in torch; `tests/envs/test_market_step.py` compares the two.
//
// Rows of N numbers are read as vectors of W; the last vector of a row ends where the row ends, so it overlaps the
// one before. `weight` is 0 on the overlap and 1 elsewhere, so that sums count each number once.

#include <omp.h>

#include <algorithm>
#include <limits>

#include "market.h"
#include "market_rollout.h"
#include "simd.h"

enum Kind { STOCK_TRADING = 0, PORTFOLIO = 1 };
enum BuyAllocation { PROPORTIONAL = 0, SEQUENTIAL = 1 };

struct StepMarket : Market {
  int64_t rounds, episode_bars;  // start windows per group, steps of an episode
  int64_t kind, buy_allocation, whole_shares;
  double hmax;
  const int64_t* starts;   // [members, rounds, groups]
  const uint8_t* limited;  // [T]: bars at which an asset cannot be traded, or all are sold; null where none is
  const float* features;   // [T, width]: what a flat row holds after the account
  int64_t width;
  int64_t only_ended;  // fill last_account for episodes that end only, instead of all accounts at such a step
};

struct StepBuffers {
  const int64_t *bar, *steps_left, *round;  // [members, groups]
  const void *cash, *shares, *action;       // [.., accounts], [.., accounts, N], [.., accounts, D]
  const void *virtual_holdings, *budget;    // [.., accounts, N] and [.., accounts] of a mandate; null without
  int64_t *reached_bar, *next_bar, *next_steps_left, *next_round;
  void *next_cash, *next_shares;
  void *account, *last_account;             // [.., accounts, 1 + N]; the second is filled only if any episode ends
  void *reward, *equity, *turnover, *cost;  // [.., accounts]
  uint8_t *terminated, *truncated;
  void *next_virtual_holdings, *next_budget;
  void *last_virtual_holdings, *last_budget;  // before a reset, filled as last_account; null where not observed
  float* rows;                                // [.., accounts, 1 + N + width], or null
};

template <class T, int W>
struct Row {  // a row of `assets` numbers as `count` vectors
  int assets, count;
  vec<T, W> last;  // `weight` of the last vector
  explicit Row(int n) : assets(n), count((n + W - 1) / W), last(broadcast<T, W>(1)) {
    for (int i = 0; i < count * W - n; i++) last[i] = 0;
  }
};

// Processes W accounts of a group at a time: along the assets of each, then on the sums of all W at once.
// RULES: rules fixed at compile time cost nothing at run time. A plain rule set has fractional shares, proportional
// buys, and every asset tradable at the bar; with RATES, costs depend on asset and bar. A plain mandate limits neither
// single weights nor turnover.
enum Rules { PLAIN_STOCK_TRADING, PLAIN_PORTFOLIO, PLAIN_PORTFOLIO_RATES, PLAIN_MANDATE, PLAIN_MANDATE_RATES, GENERAL };

template <class T, class S, int W, Rules RULES>
struct Worker {
  typedef vec<T, W> V;
  const StepMarket& m;
  const StepBuffers& s;
  const Row<T, W> row;
  static constexpr bool PLAIN = RULES != GENERAL;
  static constexpr T SMALLEST = std::numeric_limits<T>::min();  // normal number
  bool is_portfolio() const { return PLAIN ? RULES != PLAIN_STOCK_TRADING : m.kind == PORTFOLIO; }
  bool has_mandate() const { return PLAIN ? RULES >= PLAIN_MANDATE : m.mandate.base != nullptr; }
  bool is_sequential() const { return !PLAIN && m.buy_allocation == SEQUENTIAL; }
  bool is_whole() const { return !PLAIN && m.whole_shares; }
  bool has_rates() const {
    return PLAIN ? RULES == PLAIN_PORTFOLIO_RATES || RULES == PLAIN_MANDATE_RATES : m.cost_rates != nullptr;
  }
  // Buffers: for W accounts, vectors along the assets; for one account, plain numbers.
  V *held, *desired;
  T* flat_desired;
  V* capped_base;
  V *per_close, *rise;   // of the bar, set by `begin_bar`: 1 / close, and the next close / close less 1
  bool any_window_ends;  // a window ends at this step: last_account is filled for all accounts

  // Calls f(vector, first asset, weight) for every vector of a row.
  template <class F>
  void each(F f) const {
    const V one = broadcast<T, W>(1);
    const int end = row.count - 1;
    for (int k = 0; k < end; k++) f(k, k * W, one);
    f(end, row.assets - W, row.last);
  }
  static V gather(const T* from, int count) {  // of fewer than W accounts, padded with 1
    V x = broadcast<T, W>(1);
    for (int i = 0; i < count; i++) x[i] = from[i];
    return x;
  }
  template <class R>
  static void scatter(R* to, V x, int count) {
    if (count == W) return store<R, W>(to, __builtin_convertvector(x, vec<R, W>));
    for (int i = 0; i < count; i++) to[i] = R(x[i]);
  }

  // Softmax over cash and the tradable assets, not yet divided by its sum, into `desired`; returns equity times
  // leverage over that sum: the currency per unit of `desired`.
  V softmax(int64_t e0, int count, int64_t bar, V cash) const {
    const int n = row.assets;
    const T* close = static_cast<const T*>(m.close) + bar * n;
    const T* tradable = !PLAIN && m.tradable ? static_cast<const T*>(m.tradable) + bar * n : nullptr;
    const V lowest = broadcast<T, W>(-INFINITY);
    V mass[W] = {}, held_value[W] = {}, cash_score = {};
    for (int i = 0; i < count; i++) {
      const T* scores = static_cast<const T*>(s.action) + (e0 + i) * (n + 1);
      const T* shares = static_cast<const T*>(s.shares) + (e0 + i) * n;
      V* account_desired = desired + i * row.count;
      V top = broadcast<T, W>(scores[0]);
      each([&](int k, int at, V) {
        V x = load<T, W>(scores + 1 + at);
        if (tradable) x = load<T, W>(tradable + at) != 0 ? x : lowest;
        account_desired[k] = x;
        top = x < top ? top : x;
      });
      const T highest = horizontal_max<T, W>(top);
      each([&](int k, int at, V weight) {
        account_desired[k] = exp<W>(account_desired[k] - highest);
        mass[i] += account_desired[k] * weight;
        held_value[i] += load<T, W>(shares + at) * load<T, W>(close + at) * weight;
      });
      cash_score[i] = scores[0] - highest;
    }
    return (cash + horizontal_sums(held_value)) * T(m.leverage) / (horizontal_sums(mass) + exp<W>(cash_score));
  }

  void begin_bar(int64_t bar) const {
    if (!has_mandate()) return;
    const T* close = static_cast<const T*>(m.close) + bar * row.assets;
    each([&](int k, int at, V) {
      per_close[k] = 1 / load<T, W>(close + at);
      rise[k] = load<T, W>(close + row.assets + at) / load<T, W>(close + at) - 1;
    });
  }

  // What a mandate decides on for W accounts (`trade_towards` in mandate.py).
  struct Decision {
    V equity;         // in currency; NaN where the holdings are kept
    V growth_factor;  // of equity until the next close, at the weights decided
    // Of plain rules: weights are `kept` times `from`, the base or the virtual holdings, plus `desired_factor` times
    // `desired`.
    T kept;
    V desired_factor;
    const T* from[W];
  };

  // Of plain rules, `desired` receives the tilted base; of general ones, the weights decided.
  Decision decide(int64_t e0, int count, int64_t bar, V cash) const {
    const int n = row.assets;
    const T* close = static_cast<const T*>(m.close) + bar * n;
    const T* base = static_cast<const T*>(m.mandate.base) + bar * n;
    const T* tradable = !PLAIN && m.tradable ? static_cast<const T*>(m.tradable) + bar * n : nullptr;
    const bool limits_weight = !PLAIN && m.mandate.max_weight < 1, decides = m.mandate.decides[bar];
    const T speed = decides ? T(m.mandate.trade_speed) : 0;
    const V zero = {}, one = broadcast<T, W>(1), tiny = broadcast<T, W>(SMALLEST);
    V masses[W] = {}, values[W] = {}, blocked_values[W] = {}, virtual_sums[W] = {}, left_sums[W] = {};
    V freed_counts[W] = {}, base_sum = {};
    V tilted_gains[W] = {}, virtual_gains[W] = {}, base_gain = {};  // of values until the next close; plain rules only
    each([&](int k, int at, V weight) {
      base_sum += load<T, W>(base + at) * weight;
      base_gain += load<T, W>(base + at) * rise[k] * weight;
    });
    for (int i = 0; i < count; i++) {
      const T* scores = static_cast<const T*>(s.action) + (e0 + i) * n;
      const T* shares = static_cast<const T*>(s.shares) + (e0 + i) * n;
      const T* virtual_holdings = static_cast<const T*>(s.virtual_holdings) + (e0 + i) * n;
      V *account_desired = desired + i * row.count, mass = {}, worth = {}, before = {}, gain = {}, gain_before = {};
      each([&](int k, int at, V weight) {
        const V tilted = load<T, W>(base + at) * tilt_factor<T, W>(tanh<W>(load<T, W>(scores + at)), m.mandate.tilt);
        const V value = load<T, W>(shares + at) * load<T, W>(close + at) * weight;
        const V planned = load<T, W>(virtual_holdings + at) * weight;
        account_desired[k] = tilted;
        mass += tilted * weight;
        worth += value;
        before += planned;
        if (PLAIN) {
          gain += tilted * weight * rise[k];
          gain_before += planned * rise[k];
        }
        if (tradable) {
          const V can_trade = load<T, W>(tradable + at);
          blocked_values[i] += can_trade != 0 ? zero : value;
          left_sums[i] += can_trade != 0 ? planned : zero;
          freed_counts[i] += (can_trade == 0) & (planned != 0) & (value == 0) ? one : zero;
        }
      });
      masses[i] = mass;
      values[i] = worth;
      virtual_sums[i] = before;
      tilted_gains[i] = gain;
      virtual_gains[i] = gain_before;
    }
    const V value = horizontal_sums(values), equity = cash + value, planned = horizontal_sums(virtual_sums);
    const V per_worth = 1 / clamp_min(equity, broadcast<T, W>(1e-9));
    const V blocked = tradable ? horizontal_sums(blocked_values) * per_worth : zero;
    const V left = tradable ? horizontal_sums(left_sums) : planned;
    const V freed = tradable ? horizontal_sums(freed_counts) : zero;
    const V investable = clamp_min(T(m.leverage) - blocked, zero);
    const V per_mass = sum(base_sum) * investable / clamp_min(horizontal_sums(masses), tiny);
    const V kept = clamp_min(planned - blocked, zero) / (left > 0 ? left : one);
    Decision decision;
    const auto trades = (freed != 0) | (value == 0);
    decision.equity = decides ? equity : (trades ? equity : broadcast<T, W>(NAN));
    if (PLAIN) {
      const auto enters = (value == 0) | !(left > 0);
      const V before = enters ? broadcast<T, W>(sum(base_gain)) : horizontal_sums(virtual_gains);
      decision.kept = 1 - speed;
      decision.desired_factor = per_mass * speed;
      decision.growth_factor = 1 + before * decision.kept + horizontal_sums(tilted_gains) * decision.desired_factor;
      for (int i = 0; i < count; i++)
        decision.from[i] = enters[i] ? base : static_cast<const T*>(s.virtual_holdings) + (e0 + i) * n;
      return decision;
    }
    V gains[W] = {};
    for (int i = 0; i < count; i++) {
      const int64_t e = e0 + i;
      const bool fresh = value[i] == 0, enters = fresh || !(left[i] > 0);
      const T* shares = static_cast<const T*>(s.shares) + e * n;
      const T* from = enters ? base : static_cast<const T*>(s.virtual_holdings) + e * n;
      V* account_desired = desired + i * row.count;
      const T factor = enters ? investable[i] : kept[i];
      T scale = per_mass[i];
      if (limits_weight) {
        cap(account_desired, scale);
        scale = 1;
        each([&](int k, int at, V) { capped_base[k] = load<T, W>(base + at); });
        if (enters) cap(capped_base, factor);
      }
      auto weight_before = [&](int k, int at) {
        return limits_weight && enters ? capped_base[k] : load<T, W>(from + at) * factor;
      };
      T allowed = speed;
      if (s.budget) {
        V change = {};
        each([&](int k, int at, V weight) {
          const V gap = account_desired[k] * scale - weight_before(k, at);
          const V moved = (gap < 0 ? -gap : gap) * weight;
          change += tradable ? (load<T, W>(tradable + at) != 0 ? moved : zero) : moved;
        });
        allowed *= spend(e, fresh, sum(change) * speed / 2);
      }
      const T kept_share = 1 - allowed, wanted_share = scale * allowed;  // exact at a speed of 1
      V gain = {};
      each([&](int k, int at, V weight) {
        V now = weight_before(k, at) * kept_share + account_desired[k] * wanted_share;
        if (tradable) {
          const V stuck = load<T, W>(shares + at) * load<T, W>(close + at) * per_worth[i];
          now = load<T, W>(tradable + at) != 0 ? now : stuck;
        }
        account_desired[k] = now;
        gain += now * rise[k] * weight;
      });
      gains[i] = gain;
    }
    decision.growth_factor = 1 + horizontal_sums(gains);
    return decision;
  }

  static void copy_rows(const void* from, void* to, int64_t e0, int64_t e1, int64_t width) {
    const T* source = static_cast<const T*>(from);
    if (to) std::copy(source + e0 * width, source + e1 * width, static_cast<T*>(to) + e0 * width);
  }

  // The share of a turnover that the budget allows; writes what is left of it at the next bar.
  T spend(int64_t e, bool fresh, T turnover) const {
    const T full = T(m.mandate.full_budget), budget = fresh ? full : static_cast<const T*>(s.budget)[e];
    const T share = std::min(T(1), budget / std::max(turnover, SMALLEST));
    const T left = std::max(budget - turnover * share, T(0)) + T(m.mandate.budget_per_bar);
    static_cast<T*>(s.next_budget)[e] = std::min(left, full);
    return share;
  }

  // Weights `scale` times x, those above the limit cut to it and the others scaled up, such that their sum is kept as
  // far as possible. Cutting one raises the others, so the set of weights at the limit grows until it is complete.
  void cap(V* x, T scale) const {
    const T limit = T(m.mandate.max_weight);
    V total = {}, zero = {};
    each([&](int k, int, V weight) {
      x[k] *= scale;
      total += x[k] * weight;
    });
    T factor = 1, cut = 0;
    for (;;) {
      V at_limit = {}, rest = {};
      each([&](int k, int, V weight) {
        const auto above = x[k] * factor > limit;
        at_limit += above ? weight : zero;
        rest += above ? zero : x[k] * weight;
      });
      const T number = sum(at_limit);
      if (number <= cut) break;
      cut = number;
      factor = std::max(T(1), (sum(total) - limit * cut) / std::max(sum(rest), SMALLEST));
    }
    each([&](int k, int, V) { x[k] = clamp_max(x[k] * factor, broadcast<T, W>(limit)); });
  }
  static T sum(V x) {
    T total = 0;
    for (int i = 0; i < W; i++) total += x[i];
    return total;
  }

  // Accounts e0 .. e0 + count of one group; returns whether any is ruined.
  bool block(int64_t e0, int count, int64_t bar) const {
    const int n = row.assets;
    const T rate = T(m.cost_rate);
    const T *close = static_cast<const T*>(m.close) + bar * n, *fill = static_cast<const T*>(m.fill) + bar * n;
    const T *close_next = close + n, *fill_next = fill + n;
    const T* fillable = !PLAIN && m.fillable ? static_cast<const T*>(m.fillable) + bar * n : nullptr;
    const T* delisted_table = !PLAIN && m.delisted ? static_cast<const T*>(m.delisted) + bar * n : nullptr;
    const bool has_rates = this->has_rates();
    const T* rates = has_rates ? static_cast<const T*>(m.cost_rates) + bar * n : nullptr;
    const bool turbulent = !PLAIN && m.turbulent && m.turbulent[bar];
    const bool portfolio = is_portfolio(), mandate = has_mandate();
    const bool sequential = is_sequential(), whole = is_whole();
    const V zero = {};
    const T* cash_at = static_cast<const T*>(s.cash) + e0;
    const V cash = count == W ? load<T, W>(cash_at) : gather(cash_at, count);
    Decision decision;
    V share = {}, per_growth_factor = {};
    if (mandate) {
      decision = decide(e0, count, bar, cash);
      share = decision.equity;
      per_growth_factor = 1 / clamp_min(decision.growth_factor, broadcast<T, W>(1e-9));
    } else if (portfolio) {
      share = softmax(e0, count, bar, cash);
    }

    V proceeds_of[W], need_of[W], before_of[W], sale_fees_of[W] = {}, buy_fees_of[W] = {};  // fees: with rates only
    for (int i = count; i < W; i++) proceeds_of[i] = need_of[i] = before_of[i] = zero;
    for (int i = 0; i < count; i++) {
      const int64_t e = e0 + i;
      const T* shares = static_cast<const T*>(s.shares) + e * n;
      const T* action = static_cast<const T*>(s.action) + e * n;           // read by the stock trading environment only
      T* next_virtual = static_cast<T*>(s.next_virtual_holdings) + e * n;  // of a mandate
      V *account_held = held + i * row.count, *account_desired = desired + i * row.count;
      V proceeds = {}, need = {}, before = {};
      each([&](int k, int at, V weight) {
        V x, had = load<T, W>(shares + at), price = load<T, W>(fill + at) * weight;
        if (mandate) {
          V target = account_desired[k];
          if (PLAIN) target = load<T, W>(decision.from[i] + at) * decision.kept + target * decision.desired_factor[i];
          x = target * share[i];
          x = PLAIN ? x * per_close[k] - had : x / load<T, W>(close + at) - had;
          x = x == x ? x : zero;
          store<T, W>(next_virtual + at, (target * rise[k] + target) * per_growth_factor[i]);
        } else if (portfolio) {
          x = account_desired[k] * share[i] / load<T, W>(close + at) - had;
        } else {
          x = load<T, W>(action + at);
          x = clamp_max(clamp_min(x, zero - 1), zero + 1) * T(m.hmax);
        }
        if (fillable) {
          V can_fill = load<T, W>(fillable + at), delisted = load<T, W>(delisted_table + at);
          x = can_fill != 0 ? (turbulent ? -had : x) : (delisted != 0 ? -had : zero);
        } else if (turbulent) {
          x = -had;
        }
        if (whole) x = trunc(x);
        V sell = clamp_max(clamp_min(-x, zero), had), buy = clamp_min(x, zero);
        account_held[k] = had - sell;
        account_desired[k] = buy;
        proceeds += sell * price;
        need += buy * price;
        before += had * price;
        if (!has_rates) return;
        const V fee = price * load<T, W>(rates + at);
        sale_fees_of[i] += sell * fee;
        buy_fees_of[i] += buy * fee;
      });
      proceeds_of[i] = proceeds;
      need_of[i] = need;
      before_of[i] = before;
    }
    const V before = cash + horizontal_sums(before_of), proceeds = horizontal_sums(proceeds_of);
    V sale_fees = {}, buy_fees = {};
    if (has_rates) sale_fees = horizontal_sums(sale_fees_of), buy_fees = horizontal_sums(buy_fees_of);
    const V funds = has_rates ? cash + (proceeds - sale_fees) : cash + proceeds * (1 - rate);
    const V usable = clamp_min(funds, zero), values = horizontal_sums(need_of);
    const V need = has_rates ? values + buy_fees : values * (1 + rate);
    const V scale = usable / clamp_min(clamp_min(need, usable), broadcast<T, W>(SMALLEST));

    // Observed in units of the starting cash, or of the equity, which is known only after the sum.
    const V by_cash = broadcast<T, W>(1 / T(m.cash));
    V spent_of[W], after_of[W], equity_of[W], spent_fees_of[W] = {};
    for (int i = count; i < W; i++) spent_of[i] = after_of[i] = equity_of[i] = zero;
    for (int i = 0; i < count; i++) {
      S* account = static_cast<S*>(s.account) + (e0 + i) * (n + 1);
      T* next_shares = static_cast<T*>(s.next_shares) + (e0 + i) * n;
      V *account_held = held + i * row.count, *account_desired = desired + i * row.count;
      if (sequential) buy_sequentially(e0 + i, usable[i], fill, rates, account_desired);
      V spent = {}, after = {}, equity = {};
      each([&](int k, int at, V weight) {
        V buy = sequential ? account_desired[k] : account_desired[k] * scale[i];
        if (whole && !sequential) buy = floor(buy);
        V now = account_held[k] + buy, value = now * load<T, W>(close_next + at);
        if (!PLAIN) spent += buy * load<T, W>(fill + at) * weight;
        if (!PLAIN && has_rates) spent_fees_of[i] += buy * load<T, W>(fill + at) * load<T, W>(rates + at) * weight;
        after += now * load<T, W>(fill_next + at) * weight;
        equity += value * weight;
        store<T, W>(next_shares + at, now);
        if (portfolio)
          account_held[k] = value;
        else
          store<S, W>(account + 1 + at, __builtin_convertvector(value * by_cash, vec<S, W>));
      });
      spent_of[i] = spent;
      after_of[i] = after;
      equity_of[i] = equity;
    }
    const V spent = PLAIN ? values * scale : horizontal_sums(spent_of), floor = clamp_max(funds, zero);
    const V spent_fees = PLAIN ? buy_fees * scale : horizontal_sums(spent_fees_of);
    const V cash_left = clamp_min(funds - (has_rates ? spent + spent_fees : spent * (1 + rate)), floor);
    const V after = cash_left + horizontal_sums(after_of), equity = cash_left + horizontal_sums(equity_of),
            traded = proceeds + spent;
    const V per_unit = portfolio ? 1 / clamp_min(equity, broadcast<T, W>(1e-9)) : by_cash,
            cash_share = cash_left * per_unit;
    for (int i = 0; i < count; i++) {
      S* account = static_cast<S*>(s.account) + (e0 + i) * (n + 1);
      account[0] = S(cash_share[i]);
      if (!portfolio) continue;
      const V* value = held + i * row.count;
      each([&](int k, int at, V) {
        store<S, W>(account + 1 + at, __builtin_convertvector(value[k] * per_unit[i], vec<S, W>));
      });
    }
    V reward = (after - before) * T(m.change_scale);
    if (m.reward == LOG_RETURN) {
      const V ratio = before > 0 ? after / before : zero;
      reward = log<W>(clamp_min(ratio, broadcast<T, W>(m.min_growth)));
    }
    scatter(static_cast<T*>(s.next_cash) + e0, cash_left, count);
    scatter(static_cast<S*>(s.reward) + e0, reward, count);
    scatter(static_cast<S*>(s.equity) + e0, equity, count);
    scatter(static_cast<S*>(s.turnover) + e0, traded / clamp_min(before, broadcast<T, W>(1e-9)), count);
    scatter(static_cast<S*>(s.cost) + e0, has_rates ? sale_fees + spent_fees : traded * rate, count);
    const T ruin = T(m.ruin) * T(m.cash);
    return mark(s.terminated + e0, equity <= ruin, count);
  }

  // Writes 1 where a comparison held, 0 elsewhere, for `count` accounts; returns whether it held for any.
  template <class M>
  static bool mark(uint8_t* to, M held, int count) {
    const vec<uint8_t, W> flags = __builtin_convertvector(held, vec<uint8_t, W>) & 1;
    for (int i = count; i < W; i++) held[i] = 0;
    if (count == W) store<uint8_t, W>(to, flags);
    for (int i = 0; count < W && i < count; i++) to[i] = flags[i];
    uint64_t any[sizeof held / 8 + 1] = {};
    memcpy(any, &held, sizeof held);
    return std::any_of(any, any + sizeof any / 8, [](uint64_t word) { return word; });
  }

  // Sorts name[0..count) by descending priority, ties by position, into `order`: by counting, for each, those that come
  // before it. `priority` has room for W numbers more, which are overwritten.
  static void rank(int count, T* priority, const int* name, int* order) {
    const int vectors = (count + W - 1) / W;
    for (int i = 0; i < W; i++) priority[count + i] = T(-INFINITY);
    const V zero = {}, one = broadcast<T, W>(1);
    V before[vectors], place;
    for (int i = 0; i < W; i++) place[i] = T(i);
    for (int k = 0; k < vectors; k++) before[k] = zero;
    for (int j = 0; j < count; j++) {
      const V current = broadcast<T, W>(priority[j]);
      const int own = j / W;
      for (int k = 0; k < own; k++) before[k] += current > load<T, W>(priority + k * W) ? one : zero;
      const V neighbours = load<T, W>(priority + own * W), if_tied = place > T(j % W) ? one : zero;
      before[own] += current > neighbours ? one : (current == neighbours ? if_tied : zero);
      for (int k = own + 1; k < vectors; k++) before[k] += current >= load<T, W>(priority + k * W) ? one : zero;
    }
    for (int k = 0; k < count; k++) order[int(before[k / W][k % W])] = name[k];
  }

  // FinRL's order: buys by descending priority, ties by index, each as far as the cash allows. Changes
  // `account_desired`.
  void buy_sequentially(int64_t e, T funds, const T* prices, const T* rates, V* account_desired) const {
    const int n = row.assets;
    const bool whole = is_whole();
    each([&](int k, int at, V) { store<T, W>(flat_desired + at, account_desired[k]); });
    // The priority is the trade if actions are weights, and the action if they are share changes.
    const T* action = is_portfolio() ? flat_desired : static_cast<const T*>(s.action) + e * n;
    const T max_priority = is_portfolio() ? T(INFINITY) : T(1);
    // No branch below depends on an action: a branch misprediction costs more than the arithmetic.
    int order[n], bought_at[n], buys = 0;
    T priority[n + W];
    for (int i = 0; i < n; i++) {
      bought_at[buys] = i;
      priority[buys] = action[i] > max_priority ? max_priority : action[i];
      buys += flat_desired[i] > 0;
    }
    rank(buys, priority, bought_at, order);
    const T unit_cost = 1 + T(m.cost_rate);
    for (int k = 0; k < buys; k++) {
      const int i = order[k];
      const T unit = prices[i] * (rates ? 1 + rates[i] : unit_cost), amount = flat_desired[i];
      T bought;
      if (amount * unit < funds * T(0.999)) {  // affordable in any rounding: saves the division below
        bought = amount;
      } else if (whole && unit > funds * T(1.001)) {
        bought = 0;
      } else {
        T affordable = funds / unit;
        if (whole) affordable = std::floor(affordable);
        bought = affordable < amount ? affordable : amount;
      }
      funds -= bought * unit;
      funds = funds < 0 ? 0 : funds;
      flat_desired[i] = bought;
    }
    each([&](int k, int at, V) { account_desired[k] = load<T, W>(flat_desired + at); });
  }

  int64_t next_bar(int64_t g) const {
    if (s.steps_left[g] > 1) return s.bar[g] + 1;
    const int64_t p = g / m.groups, which = s.round[g] % m.rounds;
    return m.starts[(p * m.rounds + which) * m.groups + g % m.groups];
  }

  // Flat rows of accounts e0 .. e1 of group g: the account's observation, then the features of its bar.
  void write_rows(int64_t g, int64_t e0, int64_t e1) const {
    const int64_t own = row.assets + 1, whole = own + m.width;
    const float* features = m.features + next_bar(g) * m.width;
    for (int64_t e = e0; e < e1; e++) {
      const S* account = static_cast<const S*>(s.account) + e * own;
      float* to = s.rows + e * whole;
      std::copy(account, account + own, to);
      std::copy(features, features + m.width, to + own);
    }
  }

  // Accounts e0 .. e1 of group g, finished episodes reset; returns whether any episode ended.
  bool chunk(int64_t g, int64_t e0, int64_t e1) const {
    const bool ended = step_and_reset(g, e0, e1);
    if (s.rows) write_rows(g, e0, e1);
    return ended;
  }
  bool step_and_reset(int64_t g, int64_t e0, int64_t e1) const {
    const bool window_ends = s.steps_left[g] <= 1;
    const int n = row.assets;
    bool any = window_ends;
    begin_bar(s.bar[g]);
    for (int64_t e = e0; e < e1; e += W) any |= block(e, int(std::min<int64_t>(W, e1 - e)), s.bar[g]);
    if (!window_ends) std::fill(s.truncated + e0, s.truncated + e1, uint8_t(0));
    for (int64_t e = e0; window_ends && e < e1; e++) s.truncated[e] = !s.terminated[e];
    const int64_t own = n + 1;
    S *account = static_cast<S*>(s.account), *last = static_cast<S*>(s.last_account);
    if (any_window_ends || any) {
      std::copy(account + e0 * own, account + e1 * own, last + e0 * own);
      copy_rows(s.next_virtual_holdings, s.last_virtual_holdings, e0, e1, n);
      copy_rows(s.next_budget, s.last_budget, e0, e1, 1);
    }
    if (!any) return false;
    for (int64_t e = e0; e < e1; e++) {
      if (!window_ends && !s.terminated[e]) continue;
      T* shares = static_cast<T*>(s.next_shares) + e * n;
      std::fill(account + e * own, account + (e + 1) * own, S(0));
      account[e * own] = 1;
      std::fill(shares, shares + n, T(0));
      static_cast<T*>(s.next_cash)[e] = T(m.cash);
      if (!has_mandate()) continue;
      T* planned = static_cast<T*>(s.next_virtual_holdings) + e * n;
      std::fill(planned, planned + n, T(0));
      if (s.next_budget) static_cast<T*>(s.next_budget)[e] = T(m.mandate.full_budget);
    }
    return true;
  }
};

template <class T, class S, int W, Rules RULES>
static int64_t run(const StepMarket& m, const StepBuffers& s) {
  typedef vec<T, W> V;
  const int64_t groups = m.members * m.groups, chunks = (m.accounts + CHUNK_ACCOUNTS - 1) / CHUNK_ACCOUNTS;
  const int64_t n = m.assets, numbers = groups * m.accounts * n;
  int64_t ended = 0;
  const bool any_window_ends = !m.only_ended && *std::min_element(s.steps_left, s.steps_left + groups) <= 1;
#pragma omp parallel if (numbers >= MIN_PARALLEL_SIZE) reduction(+ : ended)
  {
    const Row<T, W> row(n);
    V held[row.count * W], desired[row.count * W], capped_base[row.count], per_close[row.count], rise[row.count];
    T flat_desired[n];
    const Worker<T, S, W, RULES> worker{m,           s,         row,  held,           desired, flat_desired,
                                        capped_base, per_close, rise, any_window_ends};
    const Worker<T, S, W, GENERAL> general{m,           s,         row,  held,           desired, flat_desired,
                                           capped_base, per_close, rise, any_window_ends};
#pragma omp for schedule(static)
    for (int64_t c = 0; c < groups * chunks; c++) {
      const int64_t g = c / chunks, from = c % chunks * CHUNK_ACCOUNTS;
      const int64_t to = std::min(from + CHUNK_ACCOUNTS, m.accounts);
      const bool limited = m.limited && m.limited[s.bar[g]];
      const int64_t e0 = g * m.accounts + from, e1 = g * m.accounts + to;
      ended += limited ? general.chunk(g, e0, e1) : worker.chunk(g, e0, e1);
      if (from) continue;
      const bool window_ends = s.steps_left[g] <= 1;
      s.reached_bar[g] = s.bar[g] + 1;
      s.next_bar[g] = worker.next_bar(g);
      s.next_steps_left[g] = window_ends ? m.episode_bars : s.steps_left[g] - 1;
      s.next_round[g] = s.round[g] + window_ends;
    }
  }
  // If no window ended but an account was ruined, which is known only now, the other accounts are copied here.
  if (ended && !any_window_ends && !m.only_ended) {
    for (int64_t e = 0; e < groups * m.accounts; e++) {
      if (s.terminated[e]) continue;
      const S* account = static_cast<const S*>(s.account) + e * (n + 1);
      std::copy(account, account + n + 1, static_cast<S*>(s.last_account) + e * (n + 1));
      Worker<T, S, W, RULES>::copy_rows(s.next_virtual_holdings, s.last_virtual_holdings, e, e + 1, n);
      Worker<T, S, W, RULES>::copy_rows(s.next_budget, s.last_budget, e, e + 1, 1);
    }
  }
  return ended;
}

template <class T, class S, int W>
static int64_t step(const StepMarket& m, const StepBuffers& s) {
  const bool limits = m.mandate.max_weight < 1 || s.budget;
  const bool plain =
      m.buy_allocation == PROPORTIONAL && !m.whole_shares && !limits && !(m.cost_rates && m.kind != PORTFOLIO);
  if (!plain) return run<T, S, W, GENERAL>(m, s);
  if (m.mandate.base) return m.cost_rates ? run<T, S, W, PLAIN_MANDATE_RATES>(m, s) : run<T, S, W, PLAIN_MANDATE>(m, s);
  if (m.cost_rates) return run<T, S, W, PLAIN_PORTFOLIO_RATES>(m, s);
  return m.kind == PORTFOLIO ? run<T, S, W, PLAIN_PORTFOLIO>(m, s) : run<T, S, W, PLAIN_STOCK_TRADING>(m, s);
}

// Steps accounts along the bars of a rollout; returns the number of steps, less than its bars where no scores give the
// mean of an ensemble. steps: buffers of the first step, of the second, and of the third, which the second is followed
// by again and so on: each reads what the one before has written.
template <class T, int W>
static int64_t roll(const StepMarket& m, const StepBuffers* steps, const Rollout& r) {
  const int64_t n = m.assets, accounts = m.members * m.groups * m.accounts;
  const T* account = static_cast<const T*>(r.account);
  T* action = static_cast<T*>(r.action);
  for (int64_t k = 0; k < r.bars; k++) {
    const StepBuffers& s = steps[k ? 2 - k % 2 : 0];
    float* scores = r.scores + (r.keeps_scores ? k * r.rows * n : 0);
    score_rows(r, k, account, n, scores);
    if (r.shares) {
      const T* base = static_cast<const T*>(m.mandate.base) + s.bar[0] * n;
      if (!mean_scores(m.mandate, r, scores, base, n, action)) return k;
    } else {
      std::copy(scores, scores + accounts * n, action);
    }
    if (r.accounts) std::copy(account, account + accounts * (n + 1), static_cast<T*>(r.accounts) + k * accounts * (n + 1));
    if (r.virtual_holdings) {
      const T* planned = static_cast<const T*>(s.virtual_holdings);
      std::copy(planned, planned + accounts * n, static_cast<T*>(r.virtual_holdings) + k * accounts * n);
    }
    step<T, T, W>(m, s);
    const auto keep = [&](void* to, const void* from) {
      std::copy_n(static_cast<const T*>(from), accounts, static_cast<T*>(to) + k * accounts);
    };
    keep(r.equity, s.equity);
    keep(r.turnover, s.turnover);
    keep(r.cost, s.cost);
    account = static_cast<const T*>(s.account);
  }
  return r.bars;
}

// state_bytes: 4 for float, 8 for double, of accounts, observations and results.
extern "C" int64_t market_rollout(const StepMarket* m, const StepBuffers* steps, const Rollout* r,
                                  int64_t state_bytes) {
  const bool wide = m->assets >= 8;
  if (state_bytes == 4) return wide ? roll<float, 8>(*m, steps, *r) : roll<float, 1>(*m, steps, *r);
  return wide ? roll<double, 4>(*m, steps, *r) : roll<double, 1>(*m, steps, *r);
}

// state_bytes, output_bytes: 4 for float, 8 for double; of the accounts, and of observations and results. Returns
// whether any episode ended.
extern "C" int64_t market_step(const StepMarket* m, const StepBuffers* s, int64_t state_bytes, int64_t output_bytes) {
  const bool wide = m->assets >= 8;
  if (state_bytes == 4) return wide ? step<float, float, 8>(*m, *s) : step<float, float, 1>(*m, *s);
  if (output_bytes == 4) return wide ? step<double, float, 4>(*m, *s) : step<double, float, 1>(*m, *s);
  return wide ? step<double, double, 4>(*m, *s) : step<double, double, 1>(*m, *s);
}
