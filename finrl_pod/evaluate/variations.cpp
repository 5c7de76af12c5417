// Replays target weights through the proportional accounting of finrl_pod/market/execution.py: long-only accounts,
// fractions of shares, buys scaled by one factor. Accounts are independent; each is one job. Four accounts that live
// through the same bars go through them together, one in each lane of a vector.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace {

constexpr int64_t LANES = 4;
typedef double Vec __attribute__((vector_size(LANES * sizeof(double))));
typedef float Half __attribute__((vector_size(LANES * sizeof(float))));
typedef int64_t Flags __attribute__((vector_size(LANES * sizeof(int64_t))));

// Lanes of two vectors by their places, the second's counted on from four.
#ifdef __clang__
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, Flags{__VA_ARGS__})
#endif

struct Market {                             // tables [T, N]
    const double *close, *inverse, *fill;   // inverse is 1 / close
    const uint8_t *fillable, *ended;
    const uint8_t *plain;                   // [T], every asset can fill
    int64_t bars, assets;
    int same_close;
};

struct Job {
    int64_t table, first, last;
    double rate;
};

struct Books {  // of all jobs
    double *equity, *turnover, *costs;
    int64_t marks;
    uint8_t *fault;
};

inline Vec load(const double *from) { Vec v; std::memcpy(&v, from, sizeof v); return v; }
inline Vec load(const float *from) {
    Half h;
    std::memcpy(&h, from, sizeof h);
    return __builtin_convertvector(h, Vec);
}
inline void store(double *to, Vec v) { std::memcpy(to, &v, sizeof v); }
inline Vec each(double x) { return Vec{x, x, x, x}; }
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }
inline Vec smaller(Vec a, Vec b) { return a < b ? a : b; }
inline bool any(Flags f) { return f[0] | f[1] | f[2] | f[3]; }

// Four rows of four assets each become four assets with the four rows in their lanes.
inline void turn(Vec (&v)[LANES]) {
    const Vec a = MIX(v[0], v[1], 0, 4, 2, 6), b = MIX(v[0], v[1], 1, 5, 3, 7);
    const Vec c = MIX(v[2], v[3], 0, 4, 2, 6), d = MIX(v[2], v[3], 1, 5, 3, 7);
    v[0] = MIX(a, c, 0, 1, 4, 5), v[1] = MIX(b, d, 0, 1, 4, 5);
    v[2] = MIX(a, c, 2, 3, 6, 7), v[3] = MIX(b, d, 2, 3, 6, 7);
}

template <class W>
struct Four {
    Vec cash, worth, rate, turned{}, paid{}, low{};
    Flags bad{};
    const W *rows[LANES];       // of the tables of targets, at bar 0
    double *equity[LANES];
    double *shares, *target;    // [N] vectors
};

struct Sums {
    Vec in{}, net{}, had{}, then{}, total{};
};

// One asset of one bar. Rough: some account is left alone, or the asset may not be able to fill.
template <bool rough>
inline void asset(const Market &m, int64_t t, int64_t i, Vec w, Vec worth, Flags leave, const double *shares,
                  double *target, Vec &low, Sums &s) {
    const Vec price = each(m.fill[t * m.assets + i]), held = load(shares + i * LANES);
    if (rough) w = leave ? Vec{} : w;
    Vec aim = worth * each(m.inverse[t * m.assets + i]) * w;
    if (rough) {
        aim = leave ? held : aim;
        if (!m.fillable[t * m.assets + i]) aim = m.ended[t * m.assets + i] ? Vec{} : held;
    }
    const Vec trade = aim - held;
    store(target + i * LANES, aim);
    s.in += larger(trade, Vec{}) * price;
    s.net += trade * price;
    s.had += held * price;
    s.then += aim * each(m.close[(t + 1) * m.assets + i]);
    s.total += w;
    low = smaller(w, low);
}

template <bool rough, class W>
inline Sums assets(const Market &m, const Four<W> &f, int64_t t, Flags leave, Vec &low) {
    const int64_t n = m.assets, whole = n / LANES * LANES;
    const W *row[LANES];
    for (int64_t k = 0; k < LANES; ++k) row[k] = f.rows[k] + t * n;
    Sums s;
    for (int64_t i = 0; i < whole; i += LANES) {
        Vec w[LANES] = {load(row[0] + i), load(row[1] + i), load(row[2] + i), load(row[3] + i)};
        turn(w);
        for (int64_t k = 0; k < LANES; ++k) asset<rough>(m, t, i + k, w[k], f.worth, leave, f.shares, f.target, low, s);
    }
    for (int64_t i = whole; i < n; ++i) {
        const Vec w{double(row[0][i]), double(row[1][i]), double(row[2][i]), double(row[3][i])};
        asset<rough>(m, t, i, w, f.worth, leave, f.shares, f.target, low, s);
    }
    return s;
}

template <class W>
inline void step(const Market &m, Four<W> &f, int64_t t, int64_t mark, double tolerance) {
    const int64_t n = m.assets;
    Flags leave{};
    for (int64_t k = 0; k < LANES; ++k) leave[k] = std::isnan(f.rows[k][t * n]) ? -1 : 0;
    Vec low = f.low;
    Sums s = any(leave) || !m.plain[t] ? assets<true>(m, f, t, leave, low) : assets<false>(m, f, t, leave, low);
    f.low = low;
    f.bad |= ~(s.total <= each(1 + tolerance));
    const Vec proceeds = larger(s.in - s.net, Vec{}), funds = f.cash + proceeds * (1 - f.rate);
    const Vec bill = s.in * (1 + f.rate), before = f.cash + s.had;
    const Flags cut = bill > funds;  // all buys are scaled by one factor
    Vec spent = s.in;
    if (any(cut)) {
        const Vec scale = cut ? larger(funds, Vec{}) / bill : each(1);
        s.then = Vec{};
        for (int64_t i = 0; i < n; ++i) {
            const Vec held = load(f.shares + i * LANES), aim = load(f.target + i * LANES), trade = aim - held;
            const Vec kept = trade > 0 ? held + trade * scale : aim;
            store(f.target + i * LANES, kept);
            s.then += kept * each(m.close[(t + 1) * n + i]);
        }
        spent *= scale;
    }
    std::swap(f.shares, f.target);
    f.cash = larger(funds - spent * (1 + f.rate), smaller(Vec{}, funds));
    const Vec traded = proceeds + spent;
    f.turned += before > 0 ? traded / before : Vec{};
    f.paid += traded * f.rate;
    f.worth = f.cash + s.then;
    const Vec now = f.cash + s.had + spent - proceeds;
    for (int64_t k = 0; k < LANES; ++k) {
        if (m.same_close) f.equity[k][mark] = now[k];  // what was filled at this close is marked at it
        f.equity[k][mark + 1] = f.worth[k];
    }
}

// Up to four jobs of one period; lanes without one follow the first and write into `spare`.
template <class W>
void together(const Market &m, const W *tables, const std::vector<Job> &jobs, const int64_t *places, int64_t count,
              double cash, double tolerance, const Books &books) {
    std::vector<double> memory(2 * LANES * m.assets, 0.0), spare(books.marks);
    Four<W> f{each(cash), each(cash), {}};
    f.shares = memory.data(), f.target = f.shares + LANES * m.assets;
    const Job &lead = jobs[places[0]];
    for (int64_t k = 0; k < LANES; ++k) {
        const Job &job = jobs[places[k < count ? k : 0]];
        f.rows[k] = tables + job.table * m.bars * m.assets;
        f.rate[k] = job.rate;
        f.equity[k] = k < count ? books.equity + places[k] * books.marks : spare.data();
        f.equity[k][0] = cash;
    }
    for (int64_t t = lead.first; t < lead.last; ++t) step(m, f, t, t - lead.first, tolerance);
    f.bad |= ~(f.low >= each(-tolerance));
    for (int64_t k = 0; k < count; ++k) {
        books.turnover[places[k]] = f.turned[k], books.costs[places[k]] = f.paid[k];
        books.fault[places[k]] = f.bad[k] != 0;
    }
}

// The first job whose targets break a rule, or -1.
template <class W>
int64_t run(const Market &m, const W *tables, const std::vector<Job> &jobs, double cash, double tolerance,
            const Books &books, int threads) {
    const int64_t count = jobs.size();
    std::vector<int64_t> order(count), begins;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return jobs[a].first != jobs[b].first ? jobs[a].first < jobs[b].first : jobs[a].last < jobs[b].last;
    });
    for (int64_t v = 0; v < count; ++v) {
        const bool full = !begins.empty() && v - begins.back() == LANES;
        const auto same = [&](int64_t a, int64_t b) {
            return jobs[a].first == jobs[b].first && jobs[a].last == jobs[b].last;
        };
        if (v == 0 || full || !same(order[v], order[v - 1])) begins.push_back(v);
    }
    begins.push_back(count);
    const int64_t groups = begins.size() - 1;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t g = 0; g < groups; ++g)
        together(m, tables, jobs, &order[begins[g]], begins[g + 1] - begins[g], cash, tolerance, books);
    for (int64_t v = 0; v < count; ++v)
        if (books.fault[v]) return v;
    return -1;
}

}  // namespace

extern "C" int64_t replay(const double *close, const double *inverse, const double *fill, const uint8_t *fillable,
                          const uint8_t *ended, const uint8_t *plain, int64_t bars, int64_t assets, int same_close,
                          const void *tables, int single, const int64_t *spans, const double *rates, int64_t count,
                          double cash, double tolerance, double *equity, int64_t marks, double *turnover,
                          double *costs, int threads) {
    const Market m{close, inverse, fill, fillable, ended, plain, bars, assets, same_close};
    std::vector<Job> jobs(count);
    for (int64_t v = 0; v < count; ++v) jobs[v] = {spans[3 * v], spans[3 * v + 1], spans[3 * v + 2], rates[v]};
    std::vector<uint8_t> fault(count);
    const Books books{equity, turnover, costs, marks, fault.data()};
    if (single) return run(m, static_cast<const float *>(tables), jobs, cash, tolerance, books, threads);
    return run(m, static_cast<const double *>(tables), jobs, cash, tolerance, books, threads);
}
