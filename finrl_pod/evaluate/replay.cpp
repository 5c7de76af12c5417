// Replays target weights through the proportional accounting of finrl_pod/market/execution.py: long-only accounts,
// fractions of shares, buys scaled by one factor. Accounts are independent; each is one job.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int64_t LANES = 4;   // doubles in a vector
constexpr int64_t BLOCK = 4;   // jobs that walk through the bars together: one's waiting is another's work
typedef double Vec __attribute__((vector_size(LANES * sizeof(double))));
typedef float Half __attribute__((vector_size(LANES * sizeof(float))));

struct Market {                             // tables [T, padded]; padding: prices 1, nothing fills
    const double *close, *inverse, *fill;   // inverse is 1 / close
    const uint8_t *fillable, *ended;        // [T, N]
    const uint8_t *plain;                   // [T], every asset can fill
    int64_t bars, assets, padded;
    int same_close;
};

struct Job {
    int64_t table, first, last;
    double rate;
};

struct Account {
    Vec low;  // of all targets
    double cash, worth, turned, paid;
    bool holds, fault;
    double *shares, *target, *equity;
};

inline Vec load(const double *from) { Vec v; std::memcpy(&v, from, sizeof v); return v; }
inline void store(double *to, Vec v) { std::memcpy(to, &v, sizeof v); }
inline Vec targets(const double *row, int64_t i) { return load(row + i); }
inline Vec targets(const float *row, int64_t i) {
    Half h;
    std::memcpy(&h, row + i, sizeof h);
    return __builtin_convertvector(h, Vec);
}
inline Vec positive(Vec v) { return v > 0 ? v : Vec{}; }
inline double sum(Vec v) { return (v[0] + v[1]) + (v[2] + v[3]); }

// Sums of the lanes of four vectors.
inline Vec sums(Vec a, Vec b, Vec c, Vec d) {
    typedef int64_t Places __attribute__((vector_size(LANES * sizeof(int64_t))));
    const Vec ab = __builtin_shuffle(a, b, Places{0, 4, 2, 6}) + __builtin_shuffle(a, b, Places{1, 5, 3, 7});
    const Vec cd = __builtin_shuffle(c, d, Places{0, 4, 2, 6}) + __builtin_shuffle(c, d, Places{1, 5, 3, 7});
    return __builtin_shuffle(ab, cd, Places{0, 1, 4, 5}) + __builtin_shuffle(ab, cd, Places{2, 3, 6, 7});
}

// One bar of one account. row: [N] targets, NaN first where the account is left alone.
template <class W>
inline void step(const Market &m, const W *row, int64_t t, int64_t mark, double rate, double tolerance, Account &a) {
    const int64_t n = m.padded, whole = m.assets / LANES * LANES;
    const double *price = m.fill + t * n, *inverse = m.inverse + t * n, *next = m.close + (t + 1) * n;
    double *shares = a.shares, *target = a.target;
    const bool leave = std::isnan(row[0]);
    double proceeds = 0.0, need = 0.0, before = 0.0, later = 0.0;
    bool acts = !leave;
    if (!leave) {
        Vec in{}, net{}, had{}, total{}, then{}, low = a.low;
        const auto lanes = [&](Vec w, int64_t i) {
            const Vec p = load(price + i), held = load(shares + i), aim = w * a.worth * load(inverse + i);
            const Vec trade = aim - held;
            store(target + i, aim);
            in += positive(trade) * p;
            net += trade * p;
            had += held * p;
            then += aim * load(next + i);
            total += w;
            low = low < w ? low : w;
        };
        for (int64_t i = 0; i < whole; i += LANES) lanes(targets(row, i), i);
        if (whole < m.assets) {
            W tail[LANES] = {};
            for (int64_t i = whole; i < m.assets; ++i) tail[i - whole] = row[i];
            lanes(targets(tail, 0), whole);
        }
        a.low = low;
        const Vec summed = sums(in, net, had, total);
        need = summed[0], proceeds = std::max(summed[0] - summed[1], 0.0), before = a.cash + summed[2];
        if (!(summed[3] <= 1 + tolerance)) {
            a.fault = true;
            return;
        }
        later = sum(then);
    }
    if (!m.plain[t] && (!leave || a.holds)) {  // the rare bar: what cannot fill stays, what has ended is paid out
        proceeds = need = 0.0, before = a.cash, later = 0.0;
        const uint8_t *can = m.fillable + t * m.assets, *over = m.ended + t * m.assets;
        for (int64_t i = 0; i < m.assets; ++i) {
            if (leave) target[i] = shares[i];
            if (!can[i]) target[i] = over[i] ? 0.0 : shares[i];
            const double trade = target[i] - shares[i];
            (trade < 0 ? proceeds : need) += std::fabs(trade) * price[i];
            before += shares[i] * price[i];
            later += target[i] * next[i];
        }
        acts = acts || proceeds > 0;
    }
    if (acts) {
        const double funds = a.cash + proceeds * (1 - rate), bill = need * (1 + rate);
        double spent = need;
        if (bill > funds) {  // all buys are scaled by one factor
            const double scale = std::max(funds, 0.0) / bill;
            Vec then{};
            for (int64_t i = 0; i < n; i += LANES) {
                const Vec held = load(shares + i), trade = load(target + i) - held;
                const Vec kept = held + (trade > 0 ? trade * scale : trade);
                store(target + i, kept);
                then += kept * load(next + i);
            }
            later = sum(then), spent = need * scale;
        }
        std::swap(a.shares, a.target);
        a.cash = std::max(funds - spent * (1 + rate), std::min(0.0, funds));
        if (before > 0) a.turned += (proceeds + spent) / before;
        a.paid += (proceeds + spent) * rate;
        a.holds = true;
    } else {
        Vec then{};
        for (int64_t i = 0; i < n; i += LANES) then += load(shares + i) * load(next + i);
        later = sum(then);
    }
    if (m.same_close) {
        Vec now{};
        for (int64_t i = 0; i < n; i += LANES) now += load(a.shares + i) * load(m.close + t * n + i);
        a.equity[mark] = a.cash + sum(now);
    }
    a.worth = a.cash + later;
    a.equity[mark + 1] = a.worth;
}

template <class W>
void block(const Market &m, const W *tables, const Job *jobs, int64_t count, double tolerance, Account *accounts) {
    std::vector<double> memory(2 * count * m.padded, 0.0);
    int64_t first = jobs[0].first, last = jobs[0].last;
    for (int64_t v = 0; v < count; ++v) {
        accounts[v].shares = memory.data() + 2 * v * m.padded;
        accounts[v].target = accounts[v].shares + m.padded;
        first = std::min(first, jobs[v].first);
        last = std::max(last, jobs[v].last);
    }
    for (int64_t t = first; t < last; ++t)
        for (int64_t v = 0; v < count; ++v) {
            const Job &job = jobs[v];
            if (t < job.first || t >= job.last || accounts[v].fault) continue;
            const W *row = tables + (job.table * m.bars + t) * m.assets;
            step(m, row, t, t - job.first, job.rate, tolerance, accounts[v]);
        }
    for (int64_t v = 0; v < count; ++v)
        for (int64_t i = 0; i < LANES; ++i) accounts[v].fault |= !(accounts[v].low[i] >= -tolerance);
}

// The first job whose targets break a rule, or -1.
template <class W>
int64_t all(const Market &m, const W *tables, const std::vector<Job> &jobs, double cash, double tolerance,
            double *equity, int64_t marks, double *turnover, double *costs, int threads) {
    const int64_t count = jobs.size(), blocks = (count + BLOCK - 1) / BLOCK;
    std::vector<Account> accounts(count);
    for (int64_t v = 0; v < count; ++v) {
        accounts[v] = {Vec{}, cash, cash, 0.0, 0.0, false, false, nullptr, nullptr, equity + v * marks};
        accounts[v].equity[0] = cash;
    }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t b = 0; b < blocks; ++b)
        block(m, tables, &jobs[b * BLOCK], std::min(BLOCK, count - b * BLOCK), tolerance, &accounts[b * BLOCK]);
    for (int64_t v = 0; v < count; ++v) {
        if (accounts[v].fault) return v;
        turnover[v] = accounts[v].turned, costs[v] = accounts[v].paid;
    }
    return -1;
}

}  // namespace

extern "C" int64_t replay(const double *close, const double *inverse, const double *fill, const uint8_t *fillable,
                          const uint8_t *ended, const uint8_t *plain, int64_t bars, int64_t assets, int64_t padded,
                          int same_close, const void *tables, int single, const int64_t *spans, const double *rates,
                          int64_t count, double cash, double tolerance, double *equity, int64_t marks,
                          double *turnover, double *costs, int threads) {
    const Market m{close, inverse, fill, fillable, ended, plain, bars, assets, padded, same_close};
    std::vector<Job> jobs(count);
    for (int64_t v = 0; v < count; ++v) jobs[v] = {spans[3 * v], spans[3 * v + 1], spans[3 * v + 2], rates[v]};
    if (single)
        return all(m, static_cast<const float *>(tables), jobs, cash, tolerance, equity, marks, turnover, costs,
                   threads);
    return all(m, static_cast<const double *>(tables), jobs, cash, tolerance, equity, marks, turnover, costs,
               threads);
}
