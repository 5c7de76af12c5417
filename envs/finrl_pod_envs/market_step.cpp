// One step of a market environment on a CPU, every account worked through while it is in registers. What it computes
// is what MarketEnv.transition computes with torch, which is the definition; a test holds the two together.
//
// Rows of N numbers are read as vectors of W; the last vector of a row ends where the row ends and so repeats some
// numbers of the one before. `fresh` is 0 on those repeats and 1 elsewhere, so that sums count each number once.

#include <omp.h>

#include <algorithm>

#include "simd.h"

enum Kind { STOCK_TRADING = 0, PORTFOLIO = 1 };
enum Order { PROPORTIONAL = 0, SEQUENTIAL = 1 };
enum Reward { LOG_RETURN = 0, CHANGE = 1 };
constexpr int64_t MOST_ACCOUNTS = 64;  // a chunk of work
constexpr int64_t WORTH_THREADS = 8192;  // numbers below which one thread is quicker

struct Market {
  int64_t members, groups, accounts, assets, rounds, window;
  int64_t kind, order, reward, whole_shares;
  double cost_rate, cash, hmax, leverage, ruin, change_scale, smallest_growth;
  const void *close, *fill;                  // [T, N]
  const void *tradable, *fillable, *ended;   // [T, N] of 0 and 1; null where all are (none has ended)
  const uint8_t* turbulent;                     // [T]; null where no bar is
  const int64_t* starts;                     // [members, rounds, groups]
  const float* features;                     // [T, width]: what a flat row holds beside the account
  int64_t width;
  int64_t only_ended;                        // last_account is wanted of episodes that end, not of all at such a step
};

struct Step {
  const int64_t *day, *left, *round;         // [members, groups]
  const void *cash, *shares, *action;        // [.., accounts], [.., accounts, N], [.., accounts, D]
  int64_t *reached_day, *next_day, *next_left, *next_round;
  void *next_cash, *next_shares;
  void *account, *last_account;              // [.., accounts, 1 + N]; the second is filled only when any episode ends
  void *gain, *worth, *turnover, *cost;      // [.., accounts]
  uint8_t *terminated, *truncated;
  float* rows;                               // [.., accounts, 1 + N + width], or null where nobody asks for flat rows
};

template <class T, int W>
struct Row {  // a row of `assets` numbers as `count` vectors
  int assets, count;
  lane<T, W> last;  // `fresh` of the last vector
  explicit Row(int n) : assets(n), count((n + W - 1) / W), last(all<T, W>(1)) {
    for (int i = 0; i < count * W - n; i++) last[i] = 0;
  }
};

// Works W accounts of a group at a time: along the assets of each, then on the sums of all W at once.
// RULES: what is known when it is compiled costs nothing when it runs. A plain rule set has fractional shares,
// proportional buys, and every asset tradable at every bar.
enum Rules { PLAIN_STOCK_TRADING, PLAIN_PORTFOLIO, GENERAL };

template <class T, class S, int W, Rules RULES>
struct Worker {
  typedef lane<T, W> V;
  const Market& m;
  const Step& s;
  const Row<T, W> row;
  static constexpr bool PLAIN = RULES != GENERAL;
  bool is_portfolio() const { return PLAIN ? RULES == PLAIN_PORTFOLIO : m.kind == PORTFOLIO; }
  bool is_sequential() const { return !PLAIN && m.order == SEQUENTIAL; }
  bool is_whole() const { return !PLAIN && m.whole_shares; }
  // Work space: for W accounts, vectors along the assets; for one account, plain numbers.
  V *held, *want;
  T* flat_want;
  bool some_over;  // a window ends at this step, so that all accounts are wanted in last_account as well

  template <class F>
  void each(F f) const {
    const V one = all<T, W>(1);
    const int end = row.count - 1;
    for (int k = 0; k < end; k++) f(k, k * W, one);
    f(end, row.assets - W, row.last);
  }
  static V gather(const T* from, int count) {  // of fewer than W accounts: the rest is 1
    V x = all<T, W>(1);
    for (int i = 0; i < count; i++) x[i] = from[i];
    return x;
  }
  template <class R>
  static void scatter(R* to, V x, int count) {
    if (count == W) return store<R, W>(to, __builtin_convertvector(x, lane<R, W>));
    for (int i = 0; i < count; i++) to[i] = R(x[i]);
  }

  // Softmax over cash and the assets that can be traded, not yet divided by its sum, into `want`; returns the equity
  // over that sum, times the leverage: what a share of the sum is worth in currency.
  V softmax(int64_t e0, int count, int64_t day, V cash) const {
    const int n = row.assets;
    const T *close = static_cast<const T*>(m.close) + day * n;
    const T* tradable = !PLAIN && m.tradable ? static_cast<const T*>(m.tradable) + day * n : nullptr;
    const V least = all<T, W>(-INFINITY);
    V mass[W] = {}, worth[W] = {}, own = {};
    for (int i = 0; i < count; i++) {
      const T* scores = static_cast<const T*>(s.action) + (e0 + i) * (n + 1);
      const T* shares = static_cast<const T*>(s.shares) + (e0 + i) * n;
      V* mine = want + i * row.count;
      V top = all<T, W>(scores[0]);
      each([&](int k, int at, V) {
        V x = load<T, W>(scores + 1 + at);
        if (tradable) x = load<T, W>(tradable + at) != 0 ? x : least;
        mine[k] = x;
        top = x < top ? top : x;
      });
      const T most = largest<T, W>(top);
      each([&](int k, int at, V fresh) {
        mine[k] = exponential<W>(mine[k] - most);
        mass[i] += mine[k] * fresh;
        worth[i] += load<T, W>(shares + at) * load<T, W>(close + at) * fresh;
      });
      own[i] = scores[0] - most;
    }
    return (cash + sums(worth)) * T(m.leverage) / (sums(mass) + exponential<W>(own));
  }

  // Accounts e0 .. e0 + count of one group; returns whether any is ruined.
  bool block(int64_t e0, int count, int64_t day) const {
    const int n = row.assets;
    const T rate = T(m.cost_rate);
    const T *close = static_cast<const T*>(m.close) + day * n, *fill = static_cast<const T*>(m.fill) + day * n;
    const T *close_next = close + n, *fill_next = fill + n;
    const T* fillable = !PLAIN && m.fillable ? static_cast<const T*>(m.fillable) + day * n : nullptr;
    const T* ended = !PLAIN && m.ended ? static_cast<const T*>(m.ended) + day * n : nullptr;
    const bool turbulent = !PLAIN && m.turbulent && m.turbulent[day];
    const bool portfolio = is_portfolio(), sequential = is_sequential(), whole = is_whole();
    const V zero = {};
    const T* cash_at = static_cast<const T*>(s.cash) + e0;
    const V cash = count == W ? load<T, W>(cash_at) : gather(cash_at, count);
    V share = {};
    if (portfolio) share = softmax(e0, count, day, cash);

    V proceeds_of[W], need_of[W], before_of[W];
    for (int i = count; i < W; i++) proceeds_of[i] = need_of[i] = before_of[i] = zero;
    for (int i = 0; i < count; i++) {
      const int64_t e = e0 + i;
      const T* shares = static_cast<const T*>(s.shares) + e * n;
      const T* action = static_cast<const T*>(s.action) + e * n;  // of the stock trading environment
      V *my_held = held + i * row.count, *my_want = want + i * row.count;
      V proceeds = {}, need = {}, before = {};
      each([&](int k, int at, V fresh) {
        V x, had = load<T, W>(shares + at), price = load<T, W>(fill + at) * fresh;
        if (portfolio) {
          x = my_want[k] * share[i] / load<T, W>(close + at) - had;
        } else {
          x = load<T, W>(action + at);
          x = at_most(at_least(x, zero - 1), zero + 1) * T(m.hmax);
        }
        if (fillable) {
          V open = load<T, W>(fillable + at), over = load<T, W>(ended + at);
          x = open != 0 ? (turbulent ? -had : x) : (over != 0 ? -had : zero);
        } else if (turbulent) {
          x = -had;
        }
        if (whole) x = truncated(x);
        V sell = at_most(at_least(-x, zero), had), buy = at_least(x, zero);
        my_held[k] = had - sell;
        my_want[k] = buy;
        proceeds += sell * price;
        need += buy * price;
        before += had * price;
      });
      proceeds_of[i] = proceeds;
      need_of[i] = need;
      before_of[i] = before;
    }
    const V before = cash + sums(before_of), proceeds = sums(proceeds_of);
    const V funds = cash + proceeds * (1 - rate), usable = at_least(funds, zero);
    const V need = sums(need_of) * (1 + rate);
    const T least = sizeof(T) == 4 ? T(1.17549435e-38) : T(2.2250738585072014e-308);
    const V scale = usable / at_least(at_least(need, usable), all<T, W>(least));

    // Values are shown as shares of the starting cash, or of the equity, which only their sum tells.
    const V by_cash = all<T, W>(1 / T(m.cash));
    V spent_of[W], after_of[W], worth_of[W];
    for (int i = count; i < W; i++) spent_of[i] = after_of[i] = worth_of[i] = zero;
    for (int i = 0; i < count; i++) {
      S* account = static_cast<S*>(s.account) + (e0 + i) * (n + 1);
      T* next_shares = static_cast<T*>(s.next_shares) + (e0 + i) * n;
      V *my_held = held + i * row.count, *my_want = want + i * row.count;
      if (sequential) buy_in_order(e0 + i, usable[i], fill, my_want);
      V spent = {}, after = {}, worth = {};
      each([&](int k, int at, V fresh) {
        V buy = sequential ? my_want[k] : my_want[k] * scale[i];
        if (whole && !sequential) buy = floored(buy);
        V now = my_held[k] + buy, value = now * load<T, W>(close_next + at);
        if (!PLAIN) spent += buy * load<T, W>(fill + at) * fresh;
        after += now * load<T, W>(fill_next + at) * fresh;
        worth += value * fresh;
        store<T, W>(next_shares + at, now);
        if (portfolio)
          my_held[k] = value;
        else
          store<S, W>(account + 1 + at, __builtin_convertvector(value * by_cash, lane<S, W>));
      });
      spent_of[i] = spent;
      after_of[i] = after;
      worth_of[i] = worth;
    }
    const V spent = PLAIN ? sums(need_of) * scale : sums(spent_of), floor = at_most(funds, zero);
    const V left = at_least(funds - spent * (1 + rate), floor);
    const V after = left + sums(after_of), worth = left + sums(worth_of), traded = proceeds + spent;
    const V per_unit = portfolio ? 1 / at_least(worth, all<T, W>(1e-9)) : by_cash, cash_share = left * per_unit;
    for (int i = 0; i < count; i++) {
      S* account = static_cast<S*>(s.account) + (e0 + i) * (n + 1);
      account[0] = S(cash_share[i]);
      if (!portfolio) continue;
      const V* value = held + i * row.count;
      each([&](int k, int at, V) {
        store<S, W>(account + 1 + at, __builtin_convertvector(value[k] * per_unit[i], lane<S, W>));
      });
    }
    V gain = (after - before) * T(m.change_scale);
    if (m.reward == LOG_RETURN) {
      const V ratio = before > 0 ? after / before : zero;
      gain = logarithm<W>(at_least(ratio, all<T, W>(m.smallest_growth)));
    }
    scatter(static_cast<T*>(s.next_cash) + e0, left, count);
    scatter(static_cast<S*>(s.gain) + e0, gain, count);
    scatter(static_cast<S*>(s.worth) + e0, worth, count);
    scatter(static_cast<S*>(s.turnover) + e0, traded / at_least(before, all<T, W>(1e-9)), count);
    scatter(static_cast<S*>(s.cost) + e0, traded * rate, count);
    const T ruin = T(m.ruin) * T(m.cash);
    return mark(s.terminated + e0, worth <= ruin, count);
  }

  // Writes 1 where a comparison held, 0 elsewhere, for `count` accounts; returns whether it held for any.
  template <class M>
  static bool mark(uint8_t* to, M held, int count) {
    const lane<uint8_t, W> flags = __builtin_convertvector(held, lane<uint8_t, W>) & 1;
    for (int i = count; i < W; i++) held[i] = 0;
    if (count == W) store<uint8_t, W>(to, flags);
    for (int i = 0; count < W && i < count; i++) to[i] = flags[i];
    uint64_t any[sizeof held / 8 + 1] = {};
    memcpy(any, &held, sizeof held);
    return std::any_of(any, any + sizeof any / 8, [](uint64_t word) { return word; });
  }

  // order[r] becomes name[k] for the k that r others come before: by descending priority, ties by position. priority has
  // room for W numbers more, which are written.
  static void rank(int count, T* priority, const int* name, int* order) {
    const int vectors = (count + W - 1) / W;
    for (int i = 0; i < W; i++) priority[count + i] = T(-INFINITY);
    const V zero = {}, one = all<T, W>(1);
    V before[vectors], place;
    for (int i = 0; i < W; i++) place[i] = T(i);
    for (int k = 0; k < vectors; k++) before[k] = zero;
    for (int j = 0; j < count; j++) {
      const V mine = all<T, W>(priority[j]);
      const int own = j / W;
      for (int k = 0; k < own; k++) before[k] += mine > load<T, W>(priority + k * W) ? one : zero;
      const V his = load<T, W>(priority + own * W), at_par = place > T(j % W) ? one : zero;
      before[own] += mine > his ? one : (mine == his ? at_par : zero);
      for (int k = own + 1; k < vectors; k++) before[k] += mine >= load<T, W>(priority + k * W) ? one : zero;
    }
    for (int k = 0; k < count; k++) order[int(before[k / W][k % W])] = name[k];
  }

  // FinRL's order: buys by descending priority, ties by index, each as far as the cash goes. Changes `mine`.
  void buy_in_order(int64_t e, T funds, const T* prices, V* mine) const {
    const int n = row.assets;
    const bool whole = is_whole();
    each([&](int k, int at, V) { store<T, W>(flat_want + at, mine[k]); });
    // Among the buys of weights the trades themselves have priority, among those of shares the actions.
    const T* action = is_portfolio() ? flat_want : static_cast<const T*>(s.action) + e * n;
    const T most_priority = is_portfolio() ? T(INFINITY) : T(1);
    // Nothing below jumps by what an action says: a wrong guess of the processor costs more than the arithmetic.
    int order[n], bought_at[n], buys = 0;
    T priority[n + W];
    for (int i = 0; i < n; i++) {
      bought_at[buys] = i;
      priority[buys] = action[i] > most_priority ? most_priority : action[i];
      buys += flat_want[i] > 0;
    }
    rank(buys, priority, bought_at, order);
    const T unit_cost = 1 + T(m.cost_rate);
    for (int k = 0; k < buys; k++) {
      const int i = order[k];
      const T unit = prices[i] * unit_cost, wanted = flat_want[i];
      T bought;
      if (wanted * unit < funds * T(0.999)) {  // surely affordable: the quotient below need not be taken
        bought = wanted;
      } else if (whole && unit > funds * T(1.001)) {
        bought = 0;
      } else {
        T most = funds / unit;
        if (whole) most = std::floor(most);
        bought = most < wanted ? most : wanted;
      }
      funds -= bought * unit;
      funds = funds < 0 ? 0 : funds;
      flat_want[i] = bought;
    }
    each([&](int k, int at, V) { mine[k] = load<T, W>(flat_want + at); });
  }

  int64_t next_day(int64_t g) const {
    if (s.left[g] > 1) return s.day[g] + 1;
    const int64_t p = g / m.groups, which = s.round[g] % m.rounds;
    return m.starts[(p * m.rounds + which) * m.groups + g % m.groups];
  }

  // Flat rows of accounts e0 .. e1 of group g: what an account shows, then the table's row of the day it stands at.
  void write_rows(int64_t g, int64_t e0, int64_t e1) const {
    const int64_t own = row.assets + 1, whole = own + m.width;
    const float* known = m.features + next_day(g) * m.width;
    for (int64_t e = e0; e < e1; e++) {
      const S* account = static_cast<const S*>(s.account) + e * own;
      float* to = s.rows + e * whole;
      std::copy(account, account + own, to);
      std::copy(known, known + m.width, to + own);
    }
  }

  // Accounts e0 .. e1 of group g; returns whether any episode ended.
  bool chunk(int64_t g, int64_t e0, int64_t e1) const {
    const bool ended = work(g, e0, e1);
    if (s.rows) write_rows(g, e0, e1);
    return ended;
  }
  bool work(int64_t g, int64_t e0, int64_t e1) const {
    const bool over = s.left[g] <= 1;
    const int n = row.assets;
    bool any = over;
    for (int64_t e = e0; e < e1; e += W) any |= block(e, int(std::min<int64_t>(W, e1 - e)), s.day[g]);
    if (!over) std::fill(s.truncated + e0, s.truncated + e1, uint8_t(0));
    for (int64_t e = e0; over && e < e1; e++) s.truncated[e] = !s.terminated[e];
    const int64_t own = n + 1;
    S *account = static_cast<S*>(s.account), *last = static_cast<S*>(s.last_account);
    if (some_over || any) std::copy(account + e0 * own, account + e1 * own, last + e0 * own);
    if (!any) return false;
    for (int64_t e = e0; e < e1; e++) {
      if (!over && !s.terminated[e]) continue;
      T* shares = static_cast<T*>(s.next_shares) + e * n;
      std::fill(account + e * own, account + (e + 1) * own, S(0));
      account[e * own] = 1;
      std::fill(shares, shares + n, T(0));
      static_cast<T*>(s.next_cash)[e] = T(m.cash);
    }
    return true;
  }
};

template <class T, class S, int W, Rules RULES>
static int64_t run(const Market& m, const Step& s) {
  typedef lane<T, W> V;
  const int64_t groups = m.members * m.groups, chunks = (m.accounts + MOST_ACCOUNTS - 1) / MOST_ACCOUNTS;
  const int64_t n = m.assets, numbers = groups * m.accounts * n;
  int64_t ended = 0;
  const bool some_over = !m.only_ended && *std::min_element(s.left, s.left + groups) <= 1;
#pragma omp parallel if (numbers >= WORTH_THREADS) reduction(+ : ended)
  {
    const Row<T, W> row(n);
    V held[row.count * W], want[row.count * W];
    T flat_want[n];
    const Worker<T, S, W, RULES> worker{m, s, row, held, want, flat_want, some_over};
#pragma omp for schedule(static)
    for (int64_t c = 0; c < groups * chunks; c++) {
      const int64_t g = c / chunks, from = c % chunks * MOST_ACCOUNTS;
      const int64_t to = std::min(from + MOST_ACCOUNTS, m.accounts);
      ended += worker.chunk(g, g * m.accounts + from, g * m.accounts + to);
      if (from) continue;
      const bool over = s.left[g] <= 1;
      s.reached_day[g] = s.day[g] + 1;
      s.next_day[g] = worker.next_day(g);
      s.next_left[g] = over ? m.window : s.left[g] - 1;
      s.next_round[g] = s.round[g] + over;
    }
  }
  if (ended && !some_over && !m.only_ended) {  // ruined accounts alone, which nobody foresees: those that go on are still to be copied
    for (int64_t e = 0; e < groups * m.accounts; e++) {
      if (s.terminated[e]) continue;
      const S* account = static_cast<const S*>(s.account) + e * (n + 1);
      std::copy(account, account + n + 1, static_cast<S*>(s.last_account) + e * (n + 1));
    }
  }
  return ended;
}

template <class T, class S, int W>
static int64_t step(const Market& m, const Step& s) {
  const bool plain = m.order == PROPORTIONAL && !m.whole_shares && !m.tradable && !m.fillable && !m.turbulent;
  if (!plain) return run<T, S, W, GENERAL>(m, s);
  return m.kind == PORTFOLIO ? run<T, S, W, PLAIN_PORTFOLIO>(m, s) : run<T, S, W, PLAIN_STOCK_TRADING>(m, s);
}

// state_bytes, shown_bytes: 4 for float, 8 for double, of accounts and of what is shown of them.
extern "C" int64_t market_step(const Market* m, const Step* s, int64_t state_bytes, int64_t shown_bytes) {
  const bool wide = m->assets >= 8;
  if (state_bytes == 4) return wide ? step<float, float, 8>(*m, *s) : step<float, float, 1>(*m, *s);
  if (shown_bytes == 4) return wide ? step<double, float, 4>(*m, *s) : step<double, float, 1>(*m, *s);
  return wide ? step<double, double, 4>(*m, *s) : step<double, double, 1>(*m, *s);
}
