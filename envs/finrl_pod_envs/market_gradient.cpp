// One step of the portfolio environment with fractional shares and proportional buys on the CPU, and its adjoint: from
// the gradients of the step's results, those of its inputs. The reference is MarketEnv.transition in torch under
// autograd; `tests/envs/test_market_gradient.py` compares the two.
//
// An account is processed in rows of vectors, padded at the end with assets of price 1 that are neither held nor
// bought.

#include <omp.h>

#include <algorithm>
#include <vector>

#include "mandate_gradient.h"
#include "market.h"
#include "simd.h"

enum Limit { ANY_TRADE = 0, NO_TRADE = 1, SELL_ALL = 2 };  // trades that the market allows

struct GradientBuffers {
  const int64_t* bar;                  // [groups]
  const uint8_t* window_ends;          // [groups]
  const void *cash, *shares, *action;  // [.., accounts], [.., accounts, N], [.., accounts, 1 + N], or N with a mandate
  const void* virtual_holdings;        // [.., accounts, N] of a mandate; null without
  void *next_cash, *next_shares, *next_virtual_holdings, *account, *last_account;
  void *reward, *equity, *turnover, *cost;  // [.., accounts]
  uint8_t* ruined;                          // [.., accounts]
  uint8_t* reset;                           // [.., accounts]: reset to cash
  // Gradients of results; null: zero.
  const void *next_cash_gradient, *next_shares_gradient, *next_virtual_holdings_gradient;
  const void *account_gradient, *last_account_gradient, *reward_gradient;
  void *cash_gradient, *shares_gradient, *action_gradient, *virtual_holdings_gradient;
};

// RATES: costs depend on asset and bar.
template <class T, int W, bool RATES>
struct Worker {
  typedef vec<T, W> V;
  const Market& m;
  const GradientBuffers& s;
  const int n, count;  // assets, and vectors of a row
  const bool has_mandate;
  MandateAccount<T, W> mandate;
  std::vector<T> space;
  T *close, *fill, *close_next, *fill_next, *per_close, *rates;  // of the group's bar
  T *score, *weight, *old_shares, *bought, *new_shares;          // of the account
  std::vector<uint8_t> limit, tradable;
  V* g_weight;
  std::vector<V> gradients;
  // Of the account.
  T cash, mass, cash_mass, equity, proceeds, need, funds, scale, cash_left, before, after, next_equity;
  T values, sale_fees, buy_fees;  // of requested buys; fees with RATES only
  bool limited;

  Worker(const Market& market, const GradientBuffers& buffers)
      : m(market),
        s(buffers),
        n(int(market.assets)),
        count((n + W - 1) / W),
        has_mandate(market.mandate.base),
        mandate(market),
        space(11 * count * W),
        limit(n),
        tradable(n),
        gradients(count) {
    T** rows[] = {&close, &fill,   &close_next, &fill_next, &per_close, &rates,
                  &score, &weight, &old_shares, &bought,    &new_shares};
    for (int i = 0; i < 11; i++) *rows[i] = space.data() + i * count * W;
    g_weight = gradients.data();
  }

  static T sum_of(V x) {
    T sum = 0;
    for (int i = 0; i < W; i++) sum += x[i];
    return sum;
  }
  static bool is_set(const void* mask, int64_t i) { return static_cast<const T*>(mask)[i] != 0; }
  V vector(const T* row, int k) const { return load<T, W>(row + k * W); }
  void set_vector(T* row, int k, V x) const { store<T, W>(row + k * W, x); }
  void read_row(T* row, const void* table, int64_t r, T rest) const {
    const T* from = static_cast<const T*>(table) + r * n;
    std::copy(from, from + n, row);
    std::fill(row + n, row + count * W, rest);
  }

  // Reads the prices and limits that the accounts of a group share.
  void begin_group(int64_t bar) {
    read_row(close, m.close, bar, 1);
    read_row(fill, m.fill, bar, 1);
    read_row(close_next, m.close, bar + 1, 1);
    read_row(fill_next, m.fill, bar + 1, 1);
    if (RATES) read_row(rates, m.cost_rates, bar, 0);
    for (int k = 0; k < count; k++) set_vector(per_close, k, 1 / vector(close, k));
    if (has_mandate) mandate.begin_bar(bar, close, close_next);
    const bool turbulent = m.turbulent && m.turbulent[bar];
    for (int i = 0; i < n; i++) {
      tradable[i] = !m.tradable || is_set(m.tradable, bar * n + i);
      const bool can_fill = !m.fillable || is_set(m.fillable, bar * n + i),
                 delisted = !can_fill && is_set(m.delisted, bar * n + i);
      limit[i] = can_fill ? (turbulent ? SELL_ALL : ANY_TRADE) : (delisted ? SELL_ALL : NO_TRADE);
    }
    unlimited = std::all_of(limit.begin(), limit.end(), [](uint8_t x) { return x == ANY_TRADE; }) &&
                std::all_of(tradable.begin(), tradable.end(), [](uint8_t x) { return x; });
  }
  bool unlimited;

  // Target weights from scores, over cash and the tradable assets.
  void softmax(int64_t e) {
    const T* action = static_cast<const T*>(s.action) + e * (n + 1);
    std::copy(action + 1, action + 1 + n, score);
    std::fill(score + n, score + count * W, T(-INFINITY));
    if (!unlimited)
      for (int i = 0; i < n; i++) score[i] = tradable[i] ? score[i] : T(-INFINITY);
    V top = broadcast<T, W>(action[0]);
    for (int k = 0; k < count; k++) top = vector(score, k) < top ? top : vector(score, k);
    const T highest = horizontal_max<T, W>(top);
    V sum = {}, value = {};
    for (int k = 0; k < count; k++) {
      const V e_k = exp<W>(vector(score, k) - highest);
      set_vector(weight, k, e_k);
      sum += e_k;
      value += vector(old_shares, k) * vector(close, k);
    }
    cash_mass = exp<W>(broadcast<T, W>(action[0] - highest))[0];
    mass = sum_of(sum) + cash_mass;
    equity = cash + sum_of(value);
    const T per_score = T(m.leverage) / mass;
    for (int k = 0; k < count; k++) set_vector(weight, k, vector(weight, k) * per_score);
  }

  // The trades of an account and their results: the computation that forward and backward share.
  void trade_account(int64_t e) {
    cash = static_cast<const T*>(s.cash)[e];
    read_row(old_shares, s.shares, e, 0);
    if (has_mandate) {
      const T *scores = static_cast<const T*>(s.action) + e * n,
              *holdings = static_cast<const T*>(s.virtual_holdings) + e * n;
      mandate.decide(scores, holdings, old_shares, close, cash, weight);
      equity = mandate.equity;
    } else {
      softmax(e);
    }
    V sold = {}, desired = {}, value_before = {}, fees_sold = {}, fees_desired = {};
    for (int k = 0; k < count; k++) {
      const V h = vector(old_shares, k), u = trade(k);
      const V sell = clamp_max(clamp_min(-u, V{}), h), buy = clamp_min(u, V{});
      set_vector(bought, k, buy);
      set_vector(new_shares, k, h - sell);
      sold += sell * vector(fill, k);
      desired += buy * vector(fill, k);
      value_before += h * vector(fill, k);
      if (RATES) {
        fees_sold += sell * vector(fill, k) * vector(rates, k);
        fees_desired += buy * vector(fill, k) * vector(rates, k);
      }
    }
    proceeds = sum_of(sold);
    values = sum_of(desired);
    before = cash + sum_of(value_before);
    sale_fees = RATES ? sum_of(fees_sold) : proceeds * T(m.cost_rate);
    buy_fees = RATES ? sum_of(fees_desired) : values * T(m.cost_rate);
    funds = RATES ? cash + (proceeds - sale_fees) : cash + proceeds * (1 - T(m.cost_rate));
    need = RATES ? values + buy_fees : values * (1 + T(m.cost_rate));
    const T usable = funds < 0 ? 0 : funds;
    limited = need > usable;
    scale = limited ? usable / need : 1;
    const T rest = funds - need * scale, floor = funds < 0 ? funds : 0;
    cash_left = rest < floor ? floor : rest;
    V value_after = {}, next_value = {};
    for (int k = 0; k < count; k++) {
      const V now = vector(new_shares, k) + vector(bought, k) * scale;
      set_vector(new_shares, k, now);
      value_after += now * vector(fill_next, k);
      next_value += now * vector(close_next, k);
    }
    after = cash_left + sum_of(value_after);
    next_equity = cash_left + sum_of(next_value);
  }
  // Trades in shares of vector k.
  V trade(int k) const {
    const V h = vector(old_shares, k);
    V u = vector(weight, k) * equity * vector(per_close, k) - h;
    if (has_mandate) u = mandate.keeps ? V{} : (u == u ? u : V{});  // NaN: no decision
    return unlimited ? u : limited_trade(u, h, k);
  }
  V limited_trade(V u, V h, int k) const {
    for (int j = 0; j < W && k * W + j < n; j++) {
      const uint8_t allowed = limit[k * W + j];
      u[j] = allowed == ANY_TRADE ? u[j] : (allowed == SELL_ALL ? -h[j] : 0);
    }
    return u;
  }

  void forward(int64_t e, bool window_ends) {
    trade_account(e);
    const T unit = 1 / (next_equity < T(1e-9) ? T(1e-9) : next_equity);
    T* last = static_cast<T*>(s.last_account) + e * (n + 1);
    last[0] = cash_left * unit;
    for (int i = 0; i < n; i++) last[1 + i] = new_shares[i] * close_next[i] * unit;
    const bool ruined = next_equity <= T(m.ruin) * T(m.cash), reset = window_ends || ruined;
    T *account = static_cast<T*>(s.account) + e * (n + 1), *shares = static_cast<T*>(s.next_shares) + e * n;
    T* holdings = static_cast<T*>(s.next_virtual_holdings) + e * n;
    if (has_mandate && reset) std::fill(holdings, holdings + n, T(0));
    if (has_mandate && !reset) mandate.drift(weight, holdings);
    if (reset) {
      std::fill(account, account + n + 1, T(0));
      account[0] = 1;
      std::fill(shares, shares + n, T(0));
    } else {
      std::copy(last, last + n + 1, account);
      std::copy(new_shares, new_shares + n, shares);
    }
    static_cast<T*>(s.next_cash)[e] = reset ? T(m.cash) : cash_left;
    s.ruined[e] = ruined;
    s.reset[e] = reset;
    T reward = (after - before) * T(m.change_scale);
    if (m.reward == LOG_RETURN) {
      const T ratio = before > 0 ? after / before : 0;
      reward = std::log(ratio < T(m.min_growth) ? T(m.min_growth) : ratio);
    }
    const T traded = proceeds + values * scale;
    static_cast<T*>(s.reward)[e] = reward;
    static_cast<T*>(s.equity)[e] = next_equity;
    static_cast<T*>(s.turnover)[e] = traded / (before < T(1e-9) ? T(1e-9) : before);
    static_cast<T*>(s.cost)[e] = sale_fees + buy_fees * scale;
  }

  static T value_or_zero(const void* from, int64_t e) { return from ? static_cast<const T*>(from)[e] : 0; }

  void backward(int64_t e) {
    trade_account(e);
    const T rate = T(m.cost_rate);
    const bool reset = s.reset[e];
    // Of the observed accounts, which are in units of equity. g_x: gradient of x.
    const T unit = 1 / (next_equity < T(1e-9) ? T(1e-9) : next_equity);
    const T* g_last = s.last_account_gradient ? static_cast<const T*>(s.last_account_gradient) + e * (n + 1) : nullptr;
    const T* g_account =
        s.account_gradient && !reset ? static_cast<const T*>(s.account_gradient) + e * (n + 1) : nullptr;
    const T* g_shares =
        s.next_shares_gradient && !reset ? static_cast<const T*>(s.next_shares_gradient) + e * n : nullptr;
    T *g_now = score, *scratch = reinterpret_cast<T*>(g_weight);  // the scores are no longer needed
    std::fill(g_now, g_now + count * W, T(0));
    T g_left = reset ? 0 : value_or_zero(s.next_cash_gradient, e), by_equity = 0;
    if (g_last || g_account) {
      const T g_cash = (g_last ? g_last[0] : 0) + (g_account ? g_account[0] : 0);
      std::fill(scratch, scratch + count * W, T(0));
      if (g_last)
        for (int i = 0; i < n; i++) scratch[i] = g_last[1 + i];
      if (g_account)
        for (int i = 0; i < n; i++) scratch[i] += g_account[1 + i];
      V sum = {};
      for (int k = 0; k < count; k++) {
        const V g = vector(scratch, k) * vector(close_next, k) * unit;
        set_vector(g_now, k, g);
        sum += g * vector(new_shares, k);
      }
      g_left += g_cash * unit;
      by_equity = next_equity < T(1e-9) ? 0 : -(sum_of(sum) + g_cash * cash_left * unit) * unit;
    }
    if (g_shares)
      for (int i = 0; i < n; i++) g_now[i] += g_shares[i];
    // Of the reward.
    const T g_reward = value_or_zero(s.reward_gradient, e);
    T g_after = g_reward * T(m.change_scale), g_before = -g_after;
    if (m.reward == LOG_RETURN) {
      const bool unclipped = before > 0 && after >= before * T(m.min_growth);
      g_after = unclipped ? g_reward / after : 0;
      g_before = unclipped ? -g_reward / before : 0;
    }
    g_left += g_after + by_equity;
    V by_scale = {};
    for (int k = 0; k < count; k++) {
      const V g = vector(g_now, k) + g_after * vector(fill_next, k) + by_equity * vector(close_next, k);
      set_vector(g_now, k, g);
      by_scale += g * vector(bought, k);
    }
    // Of the fills. Buys scaled down to the available funds leave no cash, so cash_left does not depend on them.
    T g_funds, g_need;
    if (limited) {
      const T g_scale = sum_of(by_scale);
      g_need = -g_scale * scale / need;
      g_funds = funds > 0 ? g_scale / need : (funds < 0 ? g_left : 0);
    } else {
      g_funds = g_left;
      g_need = -g_left;
    }
    V g_equity = {}, mean = {};
    T* g_old_shares = static_cast<T*>(s.shares_gradient) + e * n;
    for (int k = 0; k < count; k++) {
      const V now = vector(g_now, k), price = vector(fill, k), h = vector(old_shares, k), w = vector(weight, k);
      const V r = RATES ? vector(rates, k) : broadcast<T, W>(rate);
      const V g_sell = g_funds * (1 - r) * price - now;
      const V g_buy = now * scale + g_need * (1 + r) * price;
      const V u = trade(k);
      const V all_sold = u <= -h ? g_sell : V{};
      V g_u = u > 0 ? g_buy : (u <= -h ? V{} : -g_sell);
      if (!unlimited) g_u = if_free(g_u, k);
      if (has_mandate && mandate.keeps) g_u = V{};
      const V g_want = g_u * vector(per_close, k);
      g_weight[k] = g_want * equity;
      g_equity += g_want * w;
      mean += g_weight[k] * w;
      set_vector(g_now, k, now + all_sold - g_u + g_before * price);
    }
    T by_equity_before = sum_of(g_equity),
      *g_action = static_cast<T*>(s.action_gradient) + e * (has_mandate ? n : n + 1);
    if (has_mandate) {
      const T* g_drifted = reset ? nullptr : static_cast<const T*>(s.next_virtual_holdings_gradient);
      T* g_holdings = static_cast<T*>(s.virtual_holdings_gradient) + e * n;
      by_equity_before += mandate.adjoint(weight, g_weight, g_drifted ? g_drifted + e * n : nullptr, close, g_now,
                                          g_action, g_holdings);
    } else {
      const T mean_gradient = sum_of(mean) / T(m.leverage), *g_weights = reinterpret_cast<const T*>(g_weight);
      for (int i = 0; i < n; i++) g_action[1 + i] = weight[i] * (g_weights[i] - mean_gradient);
      g_action[0] = -cash_mass / mass * mean_gradient * T(m.leverage);
    }
    for (int i = 0; i < n; i++) g_old_shares[i] = g_now[i] + by_equity_before * close[i];
    static_cast<T*>(s.cash_gradient)[e] = g_funds + by_equity_before + g_before;
  }
  V if_free(V g, int k) const {
    for (int j = 0; j < W && k * W + j < n; j++) g[j] = limit[k * W + j] == ANY_TRADE ? g[j] : 0;
    return g;
  }
};

template <class T, int W, bool RATES>
static void run(const Market& m, const GradientBuffers& s, bool backward) {
  const int64_t groups = m.members * m.groups, chunks = (m.accounts + CHUNK_ACCOUNTS - 1) / CHUNK_ACCOUNTS;
#pragma omp parallel if (groups * m.accounts * m.assets >= MIN_PARALLEL_SIZE)
  {
    Worker<T, W, RATES> worker(m, s);
#pragma omp for schedule(static)
    for (int64_t c = 0; c < groups * chunks; c++) {
      const int64_t g = c / chunks, from = c % chunks * CHUNK_ACCOUNTS;
      const int64_t to = std::min(from + CHUNK_ACCOUNTS, m.accounts);
      worker.begin_group(s.bar[g]);
      for (int64_t a = from; a < to; a++) {
        if (backward)
          worker.backward(g * m.accounts + a);
        else
          worker.forward(g * m.accounts + a, s.window_ends[g]);
      }
    }
  }
}

// bytes: 4 for float, 8 for double. Forward: reads cash, shares and action, writes the results. Backward: reads them
// and `reset`, and writes the gradients of cash, shares and action.
extern "C" void market_gradient(const Market* m, const GradientBuffers* s, int64_t bytes, int64_t backward) {
  if (bytes == 4)
    m->cost_rates ? run<float, 8, true>(*m, *s, backward) : run<float, 8, false>(*m, *s, backward);
  else
    m->cost_rates ? run<double, 4, true>(*m, *s, backward) : run<double, 4, false>(*m, *s, backward);
}
