// One step of the portfolio environment with fractional shares and proportional buys on a CPU, and its adjoint: from
// the gradients of what the step led to, those of what it started from. What both compute is what torch makes of
// MarketEnv.transition, which is the definition; a test holds them together.
//
// An account is worked through in rows of vectors, padded at the end by assets that nobody holds or wants.

#include <omp.h>

#include <algorithm>
#include <vector>

#include "simd.h"

enum Reward { LOG_RETURN = 0, CHANGE = 1 };
enum Way { FREE = 0, KEPT = 1, SOLD = 2 };  // what the market lets a trade be
constexpr int64_t WORTH_THREADS = 8192;     // numbers below which one thread is quicker
constexpr int64_t MOST_ACCOUNTS = 64;       // a chunk of work

struct Market {
  int64_t groups, accounts, assets, reward;  // groups of all members
  double cost_rate, cash, leverage, ruin, change_scale, smallest_growth;
  const void *close, *fill;                  // [T, N]
  const uint8_t *tradable, *fillable, *ended;  // [T, N]; null where all are (none has ended)
  const uint8_t* turbulent;                       // [T]; null where no bar is
};

struct Step {
  const int64_t* day;                        // [groups]
  const uint8_t* over;                       // [groups] whether the window ends with this step
  const void *cash, *shares, *action;        // [.., accounts], [.., accounts, N], [.., accounts, 1 + N]
  void *next_cash, *next_shares, *account, *last_account;
  void *gain, *worth, *turnover, *cost;      // [.., accounts]
  uint8_t* ruined;                           // [.., accounts]
  uint8_t* again;                            // [.., accounts] whether the account starts anew
  const void *grad_cash, *grad_shares, *grad_account, *grad_last, *grad_gain;  // null: zero
  void *to_cash, *to_shares, *to_action;
};

template <class T, int W>
struct Worker {
  typedef lane<T, W> V;
  const Market& m;
  const Step& s;
  const int n, count;  // assets, and vectors of a row
  std::vector<T> space;
  T *close, *fill, *close_next, *fill_next, *per_close;  // of the group's day
  T *score, *weight, *had, *bought, *held;               // of the account
  std::vector<uint8_t> way, known;
  V *g_next, *g_weight;
  std::vector<V> gradients;
  // Of the account.
  T cash, mass, own, equity, proceeds, need, funds, scale, left, before, after, worth;
  bool limited;

  Worker(const Market& market, const Step& step)
      : m(market), s(step), n(int(market.assets)), count((n + W - 1) / W), space(10 * count * W), way(n), known(n),
        gradients(2 * count) {
    T** rows[] = {&close, &fill, &close_next, &fill_next, &per_close, &score, &weight, &had, &bought, &held};
    for (int i = 0; i < 10; i++) *rows[i] = space.data() + i * count * W;
    g_next = gradients.data();
    g_weight = g_next + count;
  }

  static T total(V x) {
    T sum = 0;
    for (int i = 0; i < W; i++) sum += x[i];
    return sum;
  }
  V at(const T* row, int k) const { return load<T, W>(row + k * W); }
  void put(T* row, int k, V x) const { store<T, W>(row + k * W, x); }
  void fetch(T* row, const void* table, int64_t r, T rest) const {
    const T* from = static_cast<const T*>(table) + r * n;
    std::copy(from, from + n, row);
    std::fill(row + n, row + count * W, rest);
  }

  void begin(int64_t day) {  // what the accounts of a group share
    fetch(close, m.close, day, 1);
    fetch(fill, m.fill, day, 1);
    fetch(close_next, m.close, day + 1, 1);
    fetch(fill_next, m.fill, day + 1, 1);
    for (int k = 0; k < count; k++) put(per_close, k, 1 / at(close, k));
    const bool turbulent = m.turbulent && m.turbulent[day];
    for (int i = 0; i < n; i++) {
      known[i] = !m.tradable || m.tradable[day * n + i];
      const bool open = !m.fillable || m.fillable[day * n + i], over = !open && m.ended[day * n + i];
      way[i] = open ? (turbulent ? SOLD : FREE) : (over ? SOLD : KEPT);
    }
    plain = std::all_of(way.begin(), way.end(), [](uint8_t x) { return x == FREE; }) &&
            std::all_of(known.begin(), known.end(), [](uint8_t x) { return x; });
  }
  bool plain;

  // Trades of the account as far as they are decided: how much of each asset is sold and bought at most.
  void decide(int64_t e) {
    cash = static_cast<const T*>(s.cash)[e];
    fetch(had, s.shares, e, 0);
    const T* action = static_cast<const T*>(s.action) + e * (n + 1);
    std::copy(action + 1, action + 1 + n, score);
    std::fill(score + n, score + count * W, T(-INFINITY));
    if (!plain)
      for (int i = 0; i < n; i++) score[i] = known[i] ? score[i] : T(-INFINITY);
    V top = all<T, W>(action[0]);
    for (int k = 0; k < count; k++) top = at(score, k) < top ? top : at(score, k);
    const T most = largest<T, W>(top);
    V sum = {}, value = {};
    for (int k = 0; k < count; k++) {
      const V e_k = exponential<W>(at(score, k) - most);
      put(weight, k, e_k);
      sum += e_k;
      value += at(had, k) * at(close, k);
    }
    own = exponential<W>(all<T, W>(action[0] - most))[0];
    mass = total(sum) + own;
    equity = cash + total(value);
    const T each = T(m.leverage) / mass;
    V sold = {}, wanted = {}, worth_before = {};
    for (int k = 0; k < count; k++) {
      const V w = at(weight, k) * each, h = at(had, k);
      put(weight, k, w);
      V u = w * equity * at(per_close, k) - h;
      if (!plain) u = restricted(u, h, k);
      const V sell = at_most(at_least(-u, V{}), h), buy = at_least(u, V{});
      put(bought, k, buy);
      put(held, k, h - sell);
      sold += sell * at(fill, k);
      wanted += buy * at(fill, k);
      worth_before += h * at(fill, k);
    }
    proceeds = total(sold);
    before = cash + total(worth_before);
    funds = cash + proceeds * (1 - T(m.cost_rate));
    need = total(wanted) * (1 + T(m.cost_rate));
    const T usable = funds < 0 ? 0 : funds;
    limited = need > usable;
    scale = limited ? usable / need : 1;
    const T rest = funds - need * scale, floor = funds < 0 ? funds : 0;
    left = rest < floor ? floor : rest;
    V later = {}, shown = {};
    for (int k = 0; k < count; k++) {
      const V now = at(held, k) + at(bought, k) * scale;
      put(held, k, now);
      later += now * at(fill_next, k);
      shown += now * at(close_next, k);
    }
    after = left + total(later);
    worth = left + total(shown);
  }
  V restricted(V u, V h, int k) const {
    for (int j = 0; j < W && k * W + j < n; j++) {
      const uint8_t mine = way[k * W + j];
      u[j] = mine == FREE ? u[j] : (mine == SOLD ? -h[j] : 0);
    }
    return u;
  }

  void forward(int64_t e, bool over) {
    decide(e);
    const T rate = T(m.cost_rate), unit = 1 / (worth < T(1e-9) ? T(1e-9) : worth);
    T* last = static_cast<T*>(s.last_account) + e * (n + 1);
    last[0] = left * unit;
    for (int i = 0; i < n; i++) last[1 + i] = held[i] * close_next[i] * unit;
    const bool ruined = worth <= T(m.ruin) * T(m.cash), again = over || ruined;
    T *account = static_cast<T*>(s.account) + e * (n + 1), *shares = static_cast<T*>(s.next_shares) + e * n;
    if (again) {
      std::fill(account, account + n + 1, T(0));
      account[0] = 1;
      std::fill(shares, shares + n, T(0));
    } else {
      std::copy(last, last + n + 1, account);
      std::copy(held, held + n, shares);
    }
    static_cast<T*>(s.next_cash)[e] = again ? T(m.cash) : left;
    s.ruined[e] = ruined;
    s.again[e] = again;
    T gain = (after - before) * T(m.change_scale);
    if (m.reward == LOG_RETURN) {
      const T ratio = before > 0 ? after / before : 0;
      gain = std::log(ratio < T(m.smallest_growth) ? T(m.smallest_growth) : ratio);
    }
    const T traded = proceeds + need * scale / (1 + rate);
    static_cast<T*>(s.gain)[e] = gain;
    static_cast<T*>(s.worth)[e] = worth;
    static_cast<T*>(s.turnover)[e] = traded / (before < T(1e-9) ? T(1e-9) : before);
    static_cast<T*>(s.cost)[e] = traded * rate;
  }

  static T number(const void* from, int64_t e) { return from ? static_cast<const T*>(from)[e] : 0; }

  void backward(int64_t e) {
    decide(e);
    const T rate = T(m.cost_rate);
    const bool again = s.again[e];
    // Of the account that was shown, in units of its worth.
    const T unit = 1 / (worth < T(1e-9) ? T(1e-9) : worth);
    const T* g_last = s.grad_last ? static_cast<const T*>(s.grad_last) + e * (n + 1) : nullptr;
    const T* g_fresh = s.grad_account && !again ? static_cast<const T*>(s.grad_account) + e * (n + 1) : nullptr;
    const T* g_shares = s.grad_shares && !again ? static_cast<const T*>(s.grad_shares) + e * n : nullptr;
    T *g_now = score, *scratch = reinterpret_cast<T*>(g_weight);  // the scores are done with
    std::fill(g_now, g_now + count * W, T(0));
    T g_left = again ? 0 : number(s.grad_cash, e), shown = 0;
    if (g_last || g_fresh) {
      const T g_cash = (g_last ? g_last[0] : 0) + (g_fresh ? g_fresh[0] : 0);
      std::fill(scratch, scratch + count * W, T(0));
      if (g_last)
        for (int i = 0; i < n; i++) scratch[i] = g_last[1 + i];
      if (g_fresh)
        for (int i = 0; i < n; i++) scratch[i] += g_fresh[1 + i];
      V sum = {};
      for (int k = 0; k < count; k++) {
        const V g = at(scratch, k) * at(close_next, k) * unit;
        put(g_now, k, g);
        sum += g * at(held, k);
      }
      g_left += g_cash * unit;
      shown = worth < T(1e-9) ? 0 : -(total(sum) + g_cash * left * unit) * unit;
    }
    if (g_shares)
      for (int i = 0; i < n; i++) g_now[i] += g_shares[i];
    // Of the reward.
    const T g_gain = number(s.grad_gain, e);
    T g_after = g_gain * T(m.change_scale), g_before = -g_after;
    if (m.reward == LOG_RETURN) {
      const bool counts = before > 0 && after >= before * T(m.smallest_growth);
      g_after = counts ? g_gain / after : 0;
      g_before = counts ? -g_gain / before : 0;
    }
    g_left += g_after + shown;
    V along = {};
    for (int k = 0; k < count; k++) {
      const V g = at(g_now, k) + g_after * at(fill_next, k) + shown * at(close_next, k);
      put(g_now, k, g);
      along += g * at(bought, k);
    }
    // Of the fills: buys cut down to what there is leave nothing, so that the cash left does not move.
    T g_funds, g_need;
    if (limited) {
      const T g_scale = total(along);
      g_need = -g_scale * scale / need;
      g_funds = funds > 0 ? g_scale / need : (funds < 0 ? g_left : 0);
    } else {
      g_funds = g_left;
      g_need = -g_left;
    }
    V g_equity = {}, mean = {};
    T* g_had = static_cast<T*>(s.to_shares) + e * n;
    for (int k = 0; k < count; k++) {
      const V now = at(g_now, k), price = at(fill, k), h = at(had, k), w = at(weight, k);
      const V g_sell = g_funds * (1 - rate) * price - now;
      const V g_buy = now * scale + g_need * (1 + rate) * price;
      const V u = trade(w * equity * at(per_close, k) - h, h, k);
      const V all_sold = u <= -h ? g_sell : V{};
      V g_u = u > 0 ? g_buy : (u <= -h ? V{} : -g_sell);
      if (!plain) g_u = free_only(g_u, k);
      const V g_want = g_u * at(per_close, k);
      g_weight[k] = g_want * equity;
      g_equity += g_want * w;
      mean += g_weight[k] * w;
      put(g_now, k, now + all_sold - g_u + g_before * price);
    }
    const T of_equity = total(g_equity), middle = total(mean) / T(m.leverage);
    T* g_action = static_cast<T*>(s.to_action) + e * (n + 1);
    const T* g_weights = reinterpret_cast<const T*>(g_weight);
    for (int i = 0; i < n; i++) g_had[i] = g_now[i] + of_equity * close[i];
    for (int i = 0; i < n; i++) g_action[1 + i] = weight[i] * (g_weights[i] - middle);
    g_action[0] = -own / mass * middle * T(m.leverage);
    static_cast<T*>(s.to_cash)[e] = g_funds + of_equity + g_before;
  }
  V trade(V u, V h, int k) const { return plain ? u : restricted(u, h, k); }
  V free_only(V g, int k) const {
    for (int j = 0; j < W && k * W + j < n; j++) g[j] = way[k * W + j] == FREE ? g[j] : 0;
    return g;
  }
};

template <class T, int W>
static void run(const Market& m, const Step& s, bool back) {
  const int64_t chunks = (m.accounts + MOST_ACCOUNTS - 1) / MOST_ACCOUNTS;
#pragma omp parallel if (m.groups * m.accounts * m.assets >= WORTH_THREADS)
  {
    Worker<T, W> worker(m, s);
#pragma omp for schedule(static)
    for (int64_t c = 0; c < m.groups * chunks; c++) {
      const int64_t g = c / chunks, from = c % chunks * MOST_ACCOUNTS;
      const int64_t to = std::min(from + MOST_ACCOUNTS, m.accounts);
      worker.begin(s.day[g]);
      for (int64_t a = from; a < to; a++) {
        if (back)
          worker.backward(g * m.accounts + a);
        else
          worker.forward(g * m.accounts + a, s.over[g]);
      }
    }
  }
}

// bytes: 4 for float, 8 for double.
extern "C" void market_gradient(const Market* m, const Step* s, int64_t bytes, int64_t back) {
  if (bytes == 4)
    run<float, 8>(*m, *s, back);
  else
    run<double, 4>(*m, *s, back);
}
