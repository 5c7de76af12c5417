// The gradients of an actor-critic's update for plain networks on flat rows: of the critics towards what the next state is
// worth, and of the actor up the critics. Soft ones draw from a squashed Gaussian; the others act by a tanh, and their
// target actor's action may be smoothed by noise. The plain version is each algorithm's loss through autograd: the
// definition.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

#ifdef __AVX512F__
constexpr int W = 16, ROWS = 12;
#else
constexpr int W = 8, ROWS = 6;
#endif
constexpr int COLUMNS = 2 * W;  // a product's tile: two sums a row, two lanes of b and one of a fill the registers
constexpr int64_t DEPTH = 512;                   // of a product at a time: a panel of b stays in the nearest cache
constexpr int64_t CHUNK = 8 * ROWS;              // rows that one thread takes
// Multiplications below which one thread is quicker: threads that meet a dozen times an update wait for one another.
constexpr int64_t WORTH = 1 << 24;               // of one product
typedef lane<float, W> V;

// x[i, j] = at[i * rows + j * columns]
struct View {
  const float* at;
  int64_t rows, columns;
};

template <int R>
static inline void tile(View a, const float* b, int64_t depth, float* c, int64_t rows, int64_t columns, int64_t n, bool add) {
  V sum[R][2] = {};
  for (int64_t x = 0; x < depth; x++) {
    const V left = load<float, W>(b + x * COLUMNS), right = load<float, W>(b + x * COLUMNS + W);
#pragma GCC unroll 12
    for (int i = 0; i < R; i++) {
      const float by = a.at[i * a.rows + x * a.columns];
      sum[i][0] += by * left, sum[i][1] += by * right;
    }
  }
  for (int i = 0; i < R; i++) {
    float* to = c + i * rows;
    if (columns == 1 && n == COLUMNS) {
      for (int j = 0; j < 2; j++)
        store<float, W>(to + j * W, add ? sum[i][j] + load<float, W>(to + j * W) : sum[i][j]);
    } else {
      for (int64_t j = 0; j < n; j++) {
        const float value = sum[i][j / W][j % W];
        to[j * columns] = add ? to[j * columns] + value : value;
      }
    }
  }
}

// The same for `high` rows, R at most.
template <int R>
static inline void tile_of(int64_t high, View a, const float* b, int64_t depth, float* c, int64_t rows, int64_t columns,
                           int64_t n, bool add) {
  if constexpr (R > 1)
    if (high < R) return tile_of<R - 1>(high, a, b, depth, c, rows, columns, n, add);
  tile<R>(a, b, depth, c, rows, columns, n, add);
}

// c [m, 1] = a [m, k] b [k, 1], a's rows or columns side by side: the heads of critics.
static void times_vector(int64_t m, int64_t k, View a, View b, float* c, int64_t rows) {
  static thread_local std::vector<float> by, out;
  by.resize(k), out.assign(m, 0);
  for (int64_t x = 0; x < k; x++) by[x] = b.at[x * b.rows];
  if (a.columns == 1)
    for (int64_t i = 0; i < m; i++) {
      const float* at = a.at + i * a.rows;
      V sum = {};
      int64_t x = 0;
      for (; x + W <= k; x += W) sum += load<float, W>(at + x) * load<float, W>(by.data() + x);
      float whole = 0;
      for (; x < k; x++) whole += at[x] * by[x];
      for (int j = 0; j < W; j++) whole += sum[j];
      out[i] = whole;
    }
  else
    for (int64_t x = 0; x < k; x++) {
      const float* at = a.at + x * a.columns;
      for (int64_t i = 0; i < m; i++) out[i] += at[i] * by[x];
    }
  for (int64_t i = 0; i < m; i++) c[i * rows] = out[i];
}

// c [m, n] = a [m, k] b [k, n]; c[i, j] at c[i * rows + j * columns]. What a number is summed of, and in which order,
// does not depend on the threads.
static void product(int64_t m, int64_t n, int64_t k, View a, View b, float* c, int64_t rows, int64_t columns) {
  if (n == 1 && (a.columns == 1 || a.rows == 1)) return times_vector(m, k, a, b, c, rows);
  if (n < W && m > n) {  // its transpose has whole lanes
    std::swap(m, n), std::swap(a, b), std::swap(rows, columns);
    std::swap(a.rows, a.columns), std::swap(b.rows, b.columns);
  }
  static thread_local std::vector<float> packed;
  const int64_t panels = (n + COLUMNS - 1) / COLUMNS;
  for (int64_t from = 0; from < k; from += DEPTH) {
    const int64_t depth = std::min(DEPTH, k - from);
    packed.resize(panels * depth * COLUMNS);
    if (n % COLUMNS) std::fill(packed.end() - depth * COLUMNS, packed.end(), 0.f);
    for (int64_t p = 0; p < panels; p++) {
      float* to = packed.data() + p * depth * COLUMNS;
      const int64_t wide = std::min<int64_t>(COLUMNS, n - p * COLUMNS);
      const float* at = b.at + from * b.rows + p * COLUMNS * b.columns;
      if (b.columns == 1)
        for (int64_t x = 0; x < depth; x++) std::copy(at + x * b.rows, at + x * b.rows + wide, to + x * COLUMNS);
      else
        for (int64_t j = 0; j < wide; j++)
          for (int64_t x = 0; x < depth; x++) to[x * COLUMNS + j] = at[x * b.rows + j * b.columns];
    }
    const float* const right = packed.data();
    const bool shared = m * n * depth > WORTH && !omp_in_parallel();
#pragma omp parallel for schedule(static) if (shared)
    for (int64_t first = 0; first < m; first += CHUNK) {
      const TinyIsZero flush;
      static thread_local std::vector<float> strip;
      strip.resize(depth * ROWS);
      for (int64_t i = first; i < std::min(first + CHUNK, m); i += ROWS) {
        const int64_t high = std::min<int64_t>(ROWS, m - i);
        const float* at = a.at + i * a.rows + from * a.columns;
        View left{at, a.rows, 1};
        if (a.columns != 1) {  // rows of c lie along it: gathered, they are read once from far away
          for (int64_t x = 0; x < depth; x++)
            for (int64_t r = 0; r < high; r++) strip[x * ROWS + r] = at[r * a.rows + x * a.columns];
          left = {strip.data(), 1, ROWS};
        }
        for (int64_t p = 0; p < panels; p++) {
          const float* panel = right + p * depth * COLUMNS;
          float* to = c + i * rows + p * COLUMNS * columns;
          const int64_t wide = std::min<int64_t>(COLUMNS, n - p * COLUMNS);
          tile_of<ROWS>(high, left, panel, depth, to, rows, columns, wide, from);
        }
      }
    }
  }
}

constexpr int64_t MOST_LAYERS = 9;

struct Net {
  int64_t layers, parameters, width[MOST_LAYERS + 1];  // width[0]: of the input
  int64_t weight_at[MOST_LAYERS], bias_at[MOST_LAYERS];
};

typedef std::vector<std::vector<float>> Layers;  // what each layer gave [batch, width]; the first is the input

static void forward(const Net& net, const float* own, Layers& seen, int64_t batch) {
  seen.resize(net.layers + 1);
  for (int64_t l = 0; l < net.layers; l++) {
    const int64_t in = net.width[l], out = net.width[l + 1];
    std::vector<float>& y = seen[l + 1];
    y.resize(batch * out);
    product(batch, out, in, {seen[l].data(), in, 1}, {own + net.weight_at[l], out, 1}, y.data(), out, 1);
    const float* bias = own + net.bias_at[l];
    for (int64_t i = 0; i < batch; i++) {
      float* row = y.data() + i * out;
      if (l + 1 < net.layers)
        for (int64_t j = 0; j < out; j++) {
          const float value = row[j] + bias[j];
          row[j] = value < 0 ? 0 : value;  // NaN stays
        }
      else
        for (int64_t j = 0; j < out; j++) row[j] += bias[j];
    }
  }
}

// gradient: d loss / d output [batch, last width]; becomes d loss / d input where that is wanted. into: of the parameters.
static void backward(const Net& net, const float* own, const Layers& seen, std::vector<float>& gradient, float* into,
                     int64_t batch, bool wants_input) {
  static thread_local std::vector<float> before;
  for (int64_t l = net.layers - 1; l >= 0; l--) {
    const int64_t in = net.width[l], out = net.width[l + 1];
    if (into) {
      product(in, out, batch, {seen[l].data(), 1, in}, {gradient.data(), out, 1}, into + net.weight_at[l], out, 1);
      float* bias = into + net.bias_at[l];
      std::fill(bias, bias + out, 0.f);
      for (int64_t i = 0; i < batch; i++)
        for (int64_t j = 0; j < out; j++) bias[j] += gradient[i * out + j];
    }
    if (!l && !wants_input) return;
    before.resize(batch * in);
    product(batch, in, out, {gradient.data(), out, 1}, {own + net.weight_at[l], 1, out}, before.data(), in, 1);
    if (l)
      for (int64_t i = 0; i < batch * in; i++) before[i] = seen[l][i] <= 0 ? 0 : before[i];
    std::swap(gradient, before);
  }
}

// What the actor does in the rows of a batch, and what its gradient needs to know of it.
struct Drawn {
  std::vector<float> action, change, chance;  // [B, A]; of a soft actor also [B, A] and [B]
  std::vector<char> within;                   // [B, A]
};

// What is computed on the way, kept so that the next update finds the room, and the actor's half of one what its critics'
// half has done already: `acting` and `drawn`, which are of an older batch unless this update says `improves`.
struct Memory {
  std::vector<Layers> following, acting;     // [P]: of the actor, in the next state and in this one
  std::vector<Drawn> next, drawn;            // [P]
  std::vector<Layers> values;                // [P * M]: of the critics
  std::vector<std::vector<float>> by_input;  // [P * M]: derivative of the values by what critics are shown
};

enum Rule { MIN, MEAN, SUBSET, FIRST };

struct Update {
  int64_t members, critics, batch, row, actions;
  int64_t soft, smoothed, improves;  // improves: the actor's half follows
  int64_t rule, climbs, subset;      // what a target takes of the critics, and what the actor climbs; size of a subset
  Net actor, critic;
  const float *actors, *followers, *values, *targets;  // [P, D]; who acts in the next state [P, D]; [P * M, D] each
  const float *seen, *action, *reward, *going, *following, *noise;  // [P, B, ..]; noise [P, 2, B, A] or, smoothed, [P, B, A]
  const float *temperature, *discount, *spread, *most;              // [P]; spread and bound of the smoothing noise
  const int64_t* chosen;                                            // [P, subset]
  float *gradient, *figures;  // of the critics [P * M, D] or the actors [P, D]; losses [P * M] and values [P * M], or [2, P]
  Memory* memory;
};

extern "C" Memory* actor_critic_workspace_new() { return new Memory; }
extern "C" void actor_critic_workspace_delete(Memory* memory) { delete memory; }

constexpr float LOWEST = -20, HIGHEST = 2, HALF_LOG_2PI = 0.91893853320467274f, LOG_2 = 0.69314718055994531f;

// A sample of the squashed Gaussian and its log-density.
static void draw(const Update& u, const std::vector<float>& heads, const float* noise, Drawn& out) {
  const int64_t a = u.actions;
  out.action.resize(u.batch * a), out.change.resize(u.batch * a), out.within.resize(u.batch * a);
  out.chance.resize(u.batch);
  for (int64_t i = 0; i < u.batch; i++) {
    float sum = 0;
    for (int64_t j = 0; j < a; j++) {
      const float mean = heads[i * 2 * a + j], log_std = heads[i * 2 * a + a + j], e = noise[i * a + j];
      const float bounded = log_std < LOWEST ? LOWEST : log_std > HIGHEST ? HIGHEST : log_std;
      const float change = std::exp(bounded) * e, x = mean + change;
      const float soft = -2 * x > 20 ? -2 * x : std::log1p(std::exp(-2 * x));
      out.action[i * a + j] = std::tanh(x), out.change[i * a + j] = change;
      out.within[i * a + j] = bounded == log_std;
      sum += 0.5f * e * e + bounded - 2 * (x + soft);
    }
    out.chance[i] = -sum - (HALF_LOG_2PI + 2 * LOG_2) * a;
  }
}

// The action itself; with noise, cut off at +-most and then at the bounds of actions (NaN stays).
static void decide(const std::vector<float>& heads, const float* noise, float spread, float most, Drawn& out) {
  out.action.resize(heads.size());
  for (size_t i = 0; i < heads.size(); i++) {
    float action = std::tanh(heads[i]);
    if (noise) {
      const float by = noise[i] * spread;
      action += by < -most ? -most : by > most ? most : by;
      action = action < -1 ? -1 : action > 1 ? 1 : action;
    }
    out.action[i] = action;
  }
}

static void join(const Update& u, const float* row, const float* action, Layers& seen) {
  seen.resize(u.critic.layers + 1);
  seen[0].resize(u.batch * (u.row + u.actions));
  for (int64_t i = 0; i < u.batch; i++) {
    float* to = std::copy(row + i * u.row, row + (i + 1) * u.row, seen[0].data() + i * (u.row + u.actions));
    std::copy(action + i * u.actions, action + (i + 1) * u.actions, to);
  }
}

// One of a member's two ways through an actor: in the next state, or in this one.
static void act(const Update& u, int64_t p, bool next, Layers& seen, Drawn& drawn) {
  const int64_t size = u.batch * u.row, part = u.batch * u.actions;
  const float *rows = (next ? u.following : u.seen) + p * size, *own = (next ? u.followers : u.actors);
  seen.resize(u.actor.layers + 1);
  seen[0].assign(rows, rows + size);
  forward(u.actor, own + p * u.actor.parameters, seen, u.batch);
  if (u.soft)
    draw(u, seen.back(), u.noise + (2 * p + !next) * part, drawn);
  else if (next && u.smoothed)
    decide(seen.back(), u.noise + p * part, u.spread[p], u.most[p], drawn);
  else
    decide(seen.back(), nullptr, 0, 0, drawn);
}

// Of the M values of state i of member p: the minimum, the mean, the minimum of those that were drawn, or the first.
static float combined(const Update& u, int64_t rule, const std::vector<Layers>& values, int64_t p, int64_t i) {
  const auto of = [&](int64_t m) { return values[p * u.critics + m].back()[i]; };
  const auto at = [&](int64_t k) { return rule == SUBSET ? u.chosen[p * u.subset + k] : k; };
  const int64_t count = rule == SUBSET ? u.subset : rule == FIRST ? 1 : u.critics;
  float out = of(at(0));
  for (int64_t k = 1; k < count; k++) {
    const float value = of(at(k));
    out = rule == MEAN ? out + value : value < out || value != value ? value : out;
  }
  return rule == MEAN ? out / count : out;
}

// Whether the critics are shared out among threads: those of several members always, those of one if they are large.
static bool worth_sharing(const Update& u) {
  return u.members > 1 || (u.critics > 1 && u.batch * u.critic.parameters > WORTH / 2);
}

extern "C" void update_critics(const Update* given) {
  const Update& u = *given;
  const int64_t P = u.members, M = u.critics, B = u.batch;
  const bool shared = worth_sharing(u);
  Memory& memory = *u.memory;
  std::vector<Layers>& values = memory.values;
  memory.following.resize(P), memory.acting.resize(P), memory.next.resize(P), memory.drawn.resize(P), values.resize(P * M);
#pragma omp parallel for if (shared)
  for (int64_t r = 0; r < 2 * P; r++) {  // the actor does not change before its own half: both of its ways at once
    const TinyIsZero flush;
    const int64_t p = r / 2;
    if (r % 2 == 0)
      act(u, p, true, memory.following[p], memory.next[p]);
    else if (u.improves)
      act(u, p, false, memory.acting[p], memory.drawn[p]);
  }
#pragma omp parallel for if (shared)
  for (int64_t r = 0; r < P * M; r++) {
    const TinyIsZero flush;
    const int64_t p = r / M;
    join(u, u.following + p * B * u.row, memory.next[p].action.data(), values[r]);
    forward(u.critic, u.targets + r * u.critic.parameters, values[r], B);
  }
  std::vector<float> wanted(P * B);
  for (int64_t p = 0; p < P; p++)
    for (int64_t i = 0; i < B; i++) {
      float ahead = combined(u, u.rule, values, p, i);
      if (u.soft) ahead -= u.temperature[p] * memory.next[p].chance[i];
      wanted[p * B + i] = u.reward[p * B + i] + u.discount[p] * u.going[p * B + i] * ahead;
    }
#pragma omp parallel for if (shared)
  for (int64_t r = 0; r < P * M; r++) {
    const TinyIsZero flush;
    const int64_t p = r / M;
    Layers& seen = values[r];
    join(u, u.seen + p * B * u.row, u.action + p * B * u.actions, seen);
    const float* own = u.values + r * u.critic.parameters;
    forward(u.critic, own, seen, B);
    std::vector<float> gradient(B);
    double loss = 0, value = 0;
    for (int64_t i = 0; i < B; i++) {
      const float off = seen.back()[i] - wanted[p * B + i];
      gradient[i] = 2 * off / B, loss += double(off) * off, value += seen.back()[i];
    }
    u.figures[r] = loss / B, u.figures[P * M + r] = value / B;
    backward(u.critic, own, seen, gradient, u.gradient + r * u.critic.parameters, B, false);
  }
}

// What the critic in row r of `values` says of the actions taken now, followed back to them where it has a say.
static void follow_back(const Update& u, int64_t r, const std::vector<Layers>& values, std::vector<float>& by_input) {
  const int64_t M = u.critics, B = u.batch, p = r / M, wide = u.row + u.actions;
  by_input.assign(B * wide, 0);
  std::vector<int64_t> places;
  std::vector<float> gradient;
  for (int64_t i = 0; i < B; i++) {
    float share = u.climbs == MEAN ? 1.f / M : 1.f;
    if (u.climbs == MIN) {  // of critics that are lowest together each takes its share, as torch.amin has it
      const float best = combined(u, MIN, values, p, i);
      if (values[r].back()[i] > best) continue;
      int64_t lowest = 0;
      for (int64_t m = 0; m < M; m++) lowest += values[p * M + m].back()[i] == best;
      share = 1.f / std::max<int64_t>(lowest, 1);
    }
    places.push_back(i), gradient.push_back(-share / B);
  }
  Layers some;
  const bool whole = int64_t(places.size()) == B;
  if (!whole) some.resize(u.critic.layers + 1);
  for (int64_t l = 1; l < u.critic.layers && !whole; l++) {
    const int64_t width = u.critic.width[l];
    for (const int64_t i : places)
      some[l].insert(some[l].end(), values[r][l].begin() + i * width, values[r][l].begin() + (i + 1) * width);
  }
  backward(u.critic, u.values + r * u.critic.parameters, whole ? values[r] : some, gradient, nullptr, places.size(), true);
  for (size_t i = 0; i < places.size(); i++)
    std::copy(gradient.begin() + i * wide, gradient.begin() + (i + 1) * wide, by_input.begin() + places[i] * wide);
}

extern "C" void update_actor(const Update* given) {
  const Update& u = *given;
  const int64_t P = u.members, M = u.critics, B = u.batch, A = u.actions, wide = u.row + A;
  const int64_t asked = u.climbs == FIRST ? 1 : M;  // critics of a member
  const bool shared = worth_sharing(u);
  Memory& memory = *u.memory;
  const std::vector<Drawn>& drawn = memory.drawn;
  std::vector<Layers>& values = memory.values;
  memory.by_input.resize(P * M);
#pragma omp parallel for if (shared)
  for (int64_t k = 0; k < P * asked; k++) {
    const TinyIsZero flush;
    const int64_t p = k / asked, r = p * M + k % asked;
    join(u, u.seen + p * B * u.row, drawn[p].action.data(), values[r]);
    forward(u.critic, u.values + r * u.critic.parameters, values[r], B);
  }
#pragma omp parallel for if (shared)
  for (int64_t k = 0; k < P * asked; k++) {
    const TinyIsZero flush;
    const int64_t r = k / asked * M + k % asked;
    follow_back(u, r, values, memory.by_input[r]);
  }
#pragma omp parallel for if (P > 1)
  for (int64_t p = 0; p < P; p++) {
    const TinyIsZero flush;
    const Drawn& d = drawn[p];
    const int64_t heads = u.soft ? 2 * A : A;
    std::vector<float> gradient(B * heads);
    const float temperature = u.soft ? u.temperature[p] : 0, by_chance = temperature / B;
    double loss = 0, chance = 0;
    for (int64_t i = 0; i < B; i++) {
      loss -= combined(u, u.climbs, values, p, i);
      if (u.soft) loss += temperature * d.chance[i], chance += d.chance[i];
      for (int64_t j = 0; j < A; j++) {
        float by_action = 0;
        for (int64_t m = 0; m < asked; m++) by_action += memory.by_input[p * M + m][i * wide + u.row + j];
        const float action = d.action[i * A + j];
        const float by_x = by_action * (1 - action * action) + 2 * by_chance * action;
        gradient[i * heads + j] = by_x;
        if (u.soft) gradient[i * heads + A + j] = d.within[i * A + j] ? by_x * d.change[i * A + j] - by_chance : 0;
      }
    }
    u.figures[p] = loss / B, u.figures[P + p] = -chance / B;
    backward(u.actor, u.actors + p * u.actor.parameters, memory.acting[p], gradient, u.gradient + p * u.actor.parameters, B,
             false);
  }
}
