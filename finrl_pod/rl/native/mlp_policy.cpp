// An MlpPolicy on a CPU. A few rows are worked through at a time, so that everything between the account and the gradient
// stays in the nearest cache; rows of the table are encoded once for all accounts that share them.
#include "ppo_update.h"

constexpr int64_t MOST_LAYERS = 9;  // products of a tower: hidden widths and the one to the output
constexpr int64_t UNIT = 16;        // rows of the table encoded at a time, at least
enum Tower { ACTOR, CRITIC };

struct Batch : Data {
  int64_t layers, width[MOST_LAYERS];  // what each product of the actor leads to; the critic's last is 1
  int64_t table_at[2], weight_at[2][MOST_LAYERS], bias_at[2][MOST_LAYERS];  // in a member's row
};

struct Layer {
  int64_t in, out, wide;  // wide: `out` in whole vectors
  bool single;            // the last of a tower with one output: its weights are one row, in `back`
  const float* weight;    // [in, wide]: the member's own, or `packed` where its rows are not whole vectors
  Floats packed, bias, back, grad, grad_bias;  // back: the weights turned, [out, padded(in)]

  void take(const float* from, const float* add, int64_t rows, int64_t columns, bool last, bool turned) {
    in = rows, out = columns, wide = padded(columns), single = last && out == 1, weight = from;
    if (wide != out && !single) {
      packed.assign(in * wide, 0), weight = packed.data();
      for (int64_t i = 0; i < in; i++) std::copy(from + i * out, from + (i + 1) * out, packed.begin() + i * wide);
    }
    bias.assign(wide, 0);
    if (add) std::copy(add, add + out, bias.begin());
    if (!turned && !single) return;
    const int64_t to = padded(in);
    back.assign(out * to, 0);
    for (int64_t j = 0; j < out; j++)
      for (int64_t i = 0; i < in; i++) back[j * to + i] = from[i * out + j];
  }
  void forget() { grad.assign(padded(in) * (single ? 1 : wide), 0), grad_bias.assign(wide, 0); }
  void add_to(float* weights, float* biases) const {
    const int64_t step = single ? 1 : wide;
    for (int64_t i = 0; i < in; i++)
      for (int64_t j = 0; j < out; j++) weights[i * out + j] += grad[i * step + j];
    if (biases)
      for (int64_t j = 0; j < out; j++) biases[j] += grad_bias[j];
  }
};

// One thread's work on items of one member.
class Worker : public Losses {
  const Batch& b;
  const int64_t own_wide;
  Layer table[2], layer[2][MOST_LAYERS];
  Floats rows, base[2], grad_base[2];                   // [UNIT, table], [UNIT, width[0]]
  Floats account, made[2][MOST_LAYERS], before;         // [TILE, ..]
  int64_t item[TILE];                                   // a row's, in the unit

 public:
  const int64_t unit;

  explicit Worker(const Batch& batch)
      : Losses(batch, widest(batch)), b(batch), own_wide(padded(b.own)),
        unit(std::max(UNIT, (TILE + b.accounts - 1) / b.accounts)) {
    const int64_t widest = Worker::widest(b);
    rows.resize(unit * b.table);
    for (auto& x : base) x.resize(unit * widest);
    for (auto& x : grad_base) x.resize(unit * widest);
    account.resize(TILE * own_wide), before.resize(TILE * widest);
    for (auto& tower : made)
      for (int64_t l = 0; l < b.layers; l++) tower[l].resize(TILE * widest);
  }

  static int64_t widest(const Batch& b) {
    int64_t widest = std::max(padded(b.own), padded(b.actions));
    for (int64_t l = 0; l < b.layers; l++) widest = std::max(widest, padded(b.width[l]));
    return widest;
  }

  void take(int64_t member, bool learns) {
    take_losses(member, learns);
    const float* row = b.flat + p * b.parameters;
    for (int t : {ACTOR, CRITIC}) {
      table[t].take(row + b.table_at[t], row + b.bias_at[t][0], b.table, b.width[0], false, false);
      for (int64_t l = 0, in = b.own; l < b.layers; in = b.width[l++]) {
        const bool last = l == b.layers - 1;
        layer[t][l].take(row + b.weight_at[t][l], l ? row + b.bias_at[t][l] : nullptr, in,
                         last && t == CRITIC ? 1 : b.width[l], last, learns && l);
        if (learns) layer[t][l].forget();
      }
      if (learns && table[t].wide != table[t].out) table[t].forget();
    }
  }

  // Gradient of the loss over items [from, to), added to `gradient` [parameters].
  void learn(int64_t from, int64_t to, float* gradient) {
    const int64_t h = table[ACTOR].wide;
    for (int64_t i = from; i < to; i += unit) {
      const int64_t count = std::min(unit, to - i);
      encode(i, count, ACTOR), encode(i, count, CRITIC);
      for (auto& x : grad_base) std::fill(x.begin(), x.begin() + count * h, 0.0f);
      each_tile(i, count, [&](int64_t many) {
        gather(many);
        forward(ACTOR, many), policy_loss(made[ACTOR][b.layers - 1].data(), many), backward(ACTOR, many);
        forward(CRITIC, many), value_loss(many), backward(CRITIC, many);
      });
      for (int t : {ACTOR, CRITIC}) {
        const bool whole = table[t].wide == table[t].out;
        float* to_table = whole ? gradient + b.table_at[t] : table[t].grad.data();
        product<SUM>({rows.data(), 1, b.table}, grad_base[t].data(), h, nullptr, to_table, h, b.table, h, count);
        float* to_bias = gradient + b.bias_at[t][0];
        for (int64_t k = 0; k < count; k++)
          for (int64_t j = 0; j < table[t].out; j++) to_bias[j] += grad_base[t][k * h + j];
      }
    }
    for (int t : {ACTOR, CRITIC}) {
      if (table[t].wide != table[t].out) table[t].add_to(gradient + b.table_at[t], nullptr);
      for (int64_t l = 0; l < b.layers; l++)
        layer[t][l].add_to(gradient + b.weight_at[t][l], l ? gradient + b.bias_at[t][l] : nullptr);
    }
    add_spreads(gradient);
  }

  // What a tower says of items [from, to): out [items, accounts, outputs].
  void say(int t, int64_t from, int64_t to, float* out) {
    tell(t, from, to, [&](int64_t place, const float* said, int64_t outputs) {
      std::copy(said, said + outputs, out + place * outputs);
    });
  }

  // Scores drawn with `noise` [items, accounts, actions], and the logarithm of their density.
  void draw(int64_t from, int64_t to, const float* noise, float* scores, float* chance) {
    tell(ACTOR, from, to, [&](int64_t place, const float* said, int64_t outputs) {
      chance[place] = draw_row(said, noise + place * outputs, scores + place * outputs);
    });
  }

 private:
  void encode(int64_t from, int64_t count, int t) {
    for (int64_t k = 0; k < count; k++) {
      const float* row = b.features + b.day[place_of(from + k)] * b.table;
      std::copy(row, row + b.table, rows.begin() + k * b.table);
    }
    const Layer& y = table[t];
    product<ROW>({rows.data(), b.table, 1}, y.weight, y.wide, y.bias.data(), base[t].data(), y.wide, count, y.wide, b.table);
  }

  template <class F>
  void each_tile(int64_t from, int64_t count, F f) {
    const int64_t all = count * b.accounts;
    for (int64_t r = 0; r < all; r += TILE) {
      const int64_t many = std::min(TILE, all - r);
      for (int64_t i = 0; i < many; i++) {
        item[i] = (r + i) / b.accounts;
        where[i] = place_of(from + item[i]) * b.accounts + (r + i) % b.accounts;
        const float* mine = b.account + where[i] * b.own;
        std::copy(mine, mine + b.own, account.begin() + i * own_wide);
      }
      f(many);
    }
  }

  template <class F>
  void tell(int t, int64_t from, int64_t to, F f) {
    for (int64_t i = from; i < to; i += unit) {
      const int64_t count = std::min(unit, to - i);
      int64_t place = (p * b.items + i) * b.accounts;
      encode(i, count, t);
      each_tile(i, count, [&](int64_t many) {
        forward(t, many);
        const Layer& last = layer[t][b.layers - 1];
        for (int64_t r = 0; r < many; r++) f(place++, made[t][b.layers - 1].data() + r * last.wide, last.out);
      });
    }
  }

  void forward(int t, int64_t many) {
    Left in{account.data(), own_wide, 1};
    for (int64_t l = 0; l < b.layers; l++) {
      const Layer& y = layer[t][l];
      float* out = made[t][l].data();
      if (y.single) return weigh(y, in, out, many);
      if (l) {
        product<ROW>(in, y.weight, y.wide, y.bias.data(), out, y.wide, many, y.wide, y.in);
      } else {
        for (int64_t r = 0; r < many; r++) {
          const float* start = base[t].data() + item[r] * y.wide;
          std::copy(start, start + y.wide, out + r * y.wide);
        }
        product<SUM>(in, y.weight, y.wide, nullptr, out, y.wide, many, y.wide, y.in);
      }
      if (l < b.layers - 1)
        for (int64_t i = 0; i < many * y.wide; i += 8) store<float, 8>(out + i, tangent<8>(load<float, 8>(out + i)));
      in = {out, y.wide, 1};
    }
  }

  // A layer with one output, eight rows at a time: out [many, 8], of which the first column counts.
  static void weigh(const Layer& y, Left in, float* out, int64_t many) {
    for (int64_t r = 0; r < many; r += 8) {
      V part[8] = {};
      const int64_t count = std::min<int64_t>(8, many - r);
      for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < in.rows; j += 8)
          part[i] += load<float, 8>(in.at + (r + i) * in.rows + j) * load<float, 8>(&y.back[j]);
      const V sum = sums(part) + y.bias[0];
      for (int64_t i = 0; i < count; i++) store<float, 8>(out + (r + i) * 8, V{sum[i]});
    }
  }

  // Leaves the gradient of the values in the first column of `back` [many, 8].
  void value_loss(int64_t many) {
    const float* value = made[CRITIC][b.layers - 1].data();
    for (int64_t r = 0; r < many; r++) back[r * 8] = value_slope(r, value[r * 8]);
  }

  // From the gradient of the last layer's sums, in `back`, to those of all weights.
  void backward(int t, int64_t many) {
    for (int64_t l = b.layers - 1; l > 0; l--) {
      Layer& y = layer[t][l];
      const int64_t wide_in = padded(y.in);
      const float *g = back.data(), *in = made[t][l - 1].data();
      if (y.single) {
        unweigh(y, in, wide_in, many);
      } else {
        product<SUM>({in, 1, wide_in}, g, y.wide, nullptr, y.grad.data(), y.wide, y.in, y.wide, many);
        add_rows(g, y.wide, many, y.grad_bias.data());
        product<ZERO>({g, y.wide, 1}, y.back.data(), wide_in, nullptr, before.data(), wide_in, many, wide_in, y.out);
        for (int64_t i = 0; i < many * wide_in; i += 8) {
          const V h = load<float, 8>(in + i);
          store<float, 8>(&before[i], load<float, 8>(&before[i]) * (1.0f - h * h));
        }
      }
      std::swap(back, before);
    }
    Layer& y = layer[t][0];
    product<SUM>({account.data(), 1, own_wide}, back.data(), y.wide, nullptr, y.grad.data(), y.wide, y.in, y.wide, many);
    for (int64_t r = 0; r < many;) {  // rows of an item follow one another
      int64_t end = r + 1;
      while (end < many && item[end] == item[r]) end++;
      add_rows(back.data() + r * y.wide, y.wide, end - r, grad_base[t].data() + item[r] * y.wide);
      r = end;
    }
  }
  static void add_rows(const float* g, int64_t wide, int64_t many, float* to) {
    for (int64_t j = 0; j < wide; j += 8) {
      V sum = load<float, 8>(to + j);
      for (int64_t r = 0; r < many; r++) sum += load<float, 8>(g + r * wide + j);
      store<float, 8>(to + j, sum);
    }
  }
  // The same for a layer with one output.
  void unweigh(Layer& y, const float* in, int64_t wide_in, int64_t many) {
    for (int64_t r = 0; r < many; r++) y.grad_bias[0] += back[r * 8];
    for (int64_t j = 0; j < wide_in; j += 8) {
      const V w = load<float, 8>(&y.back[j]);
      V sum = load<float, 8>(&y.grad[j]);
      for (int64_t r = 0; r < many; r++) {
        const V h = load<float, 8>(in + r * wide_in + j);
        const float g = back[r * 8];
        sum += g * h;
        store<float, 8>(&before[r * wide_in + j], g * w * (1.0f - h * h));
      }
      store<float, 8>(&y.grad[j], sum);
    }
  }
};

EXPORT_POLICY(Worker, Batch)
