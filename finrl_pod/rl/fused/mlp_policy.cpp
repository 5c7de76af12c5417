// PPO with an MLP policy (tanh layers; separate actor and critic). Rows are worked through a tile at a time, so that
// everything between the account and the gradient stays in the nearest cache; rows of the market table are encoded once
// for all accounts that share them.
#include "ppo_update.h"

constexpr int64_t MAX_LAYERS = 9;       // matrices of a tower: those to the hidden layers and the one to the output
constexpr int64_t MIN_TABLE_ROWS = 16;  // rows of the table encoded at a time, at least

struct MlpBatch : Rollout {
  int64_t layers, width[MAX_LAYERS];  // outputs of each matrix of the actor; the critic's last has one
  int64_t table_at[2], weight_at[2][MAX_LAYERS], bias_at[2][MAX_LAYERS];  // places in a member's row, by tower
};

struct Layer {
  int64_t in, out, wide;  // wide: `out` in whole vectors
  bool scalar;            // an output layer of one number: its weights are one row, in `transposed`
  const float* weight;    // [in, wide]: the member's own, or `packed` where its rows are not whole vectors
  Floats packed, bias, transposed, grad, grad_bias;  // transposed: [out, padded(in)]

  // to_backward: the transposed weights will be needed.
  void set(const float* from, const float* from_bias, int64_t rows, int64_t columns, bool last, bool to_backward) {
    in = rows, out = columns, wide = padded(columns), scalar = last && out == 1, weight = from;
    if (wide != out && !scalar) {
      packed.assign(in * wide, 0), weight = packed.data();
      for (int64_t i = 0; i < in; i++) std::copy(from + i * out, from + (i + 1) * out, packed.begin() + i * wide);
    }
    bias.assign(wide, 0);
    if (from_bias) std::copy(from_bias, from_bias + out, bias.begin());
    if (!to_backward && !scalar) return;
    const int64_t to = padded(in);
    transposed.assign(out * to, 0);
    for (int64_t j = 0; j < out; j++)
      for (int64_t i = 0; i < in; i++) transposed[j * to + i] = from[i * out + j];
  }
  void zero_gradient() { grad.assign(padded(in) * (scalar ? 1 : wide), 0), grad_bias.assign(wide, 0); }
  void add_gradient_to(float* weights, float* biases) const {
    const int64_t step = scalar ? 1 : wide;
    for (int64_t i = 0; i < in; i++)
      for (int64_t j = 0; j < out; j++) weights[i * out + j] += grad[i * step + j];
    if (biases)
      for (int64_t j = 0; j < out; j++) biases[j] += grad_bias[j];
  }
};

class MlpWorker : public PolicyWorker {
  const MlpBatch& b;
  const int64_t own_wide;
  Layer table[2], layer[2][MAX_LAYERS];
  Floats table_rows, base[2], grad_base[2];          // [unit, table], [unit, width[0]]: the table's part of layer 0
  Floats account, outputs[2][MAX_LAYERS], previous;  // [TILE, ..]
  int64_t item[TILE];                                // of each row, counted from the unit's first

 public:
  const int64_t unit;  // items whose table rows are encoded at a time

  explicit MlpWorker(const MlpBatch& batch)
      : PolicyWorker(batch, widest(batch)),
        b(batch),
        own_wide(padded(b.own)),
        unit(std::max(MIN_TABLE_ROWS, (TILE + b.accounts - 1) / b.accounts)) {
    const int64_t widest = MlpWorker::widest(b);
    table_rows.resize(unit * b.table);
    for (auto& x : base) x.resize(unit * widest);
    for (auto& x : grad_base) x.resize(unit * widest);
    account.resize(TILE * own_wide), previous.resize(TILE * widest);
    for (auto& tower : outputs)
      for (int64_t l = 0; l < b.layers; l++) tower[l].resize(TILE * widest);
  }

  static int64_t widest(const MlpBatch& b) {
    int64_t widest = std::max(padded(b.own), padded(b.actions));
    for (int64_t l = 0; l < b.layers; l++) widest = std::max(widest, padded(b.width[l]));
    return widest;
  }

  void begin_member(int64_t member, bool training) {
    begin_losses(member, training);
    const float* row = b.flat + p * b.parameters;
    for (int t : {ACTOR, CRITIC}) {
      table[t].set(row + b.table_at[t], row + b.bias_at[t][0], b.table, b.width[0], false, false);
      for (int64_t l = 0, in = b.own; l < b.layers; in = b.width[l++]) {
        const bool last = l == b.layers - 1;
        layer[t][l].set(row + b.weight_at[t][l], l ? row + b.bias_at[t][l] : nullptr, in,
                        last && t == CRITIC ? 1 : b.width[l], last, training && l);
        if (training) layer[t][l].zero_gradient();
      }
      if (training && table[t].wide != table[t].out) table[t].zero_gradient();
    }
  }

  // Adds the gradient of the loss over items [from, to) to `gradient` [parameters].
  void accumulate_gradient(int64_t from, int64_t to, float* gradient) {
    const int64_t h = table[ACTOR].wide;
    for (int64_t i = from; i < to; i += unit) {
      const int64_t count = std::min(unit, to - i);
      encode_table(i, count, ACTOR), encode_table(i, count, CRITIC);
      for (auto& x : grad_base) std::fill(x.begin(), x.begin() + count * h, 0.0f);
      for_each_tile(i, count, [&](int64_t rows) {
        gather_rows(rows);
        forward(ACTOR, rows), policy_loss(outputs[ACTOR][b.layers - 1].data(), rows), backward(ACTOR, rows);
        forward(CRITIC, rows), value_loss(rows), backward(CRITIC, rows);
      });
      for (int t : {ACTOR, CRITIC}) {
        const bool whole = table[t].wide == table[t].out;
        float* to_table = whole ? gradient + b.table_at[t] : table[t].grad.data();
        matmul<PRESENT>({table_rows.data(), 1, b.table}, grad_base[t].data(), h, nullptr, to_table, h, b.table, h,
                        count);
        float* to_bias = gradient + b.bias_at[t][0];
        for (int64_t k = 0; k < count; k++)
          for (int64_t j = 0; j < table[t].out; j++) to_bias[j] += grad_base[t][k * h + j];
      }
    }
    for (int t : {ACTOR, CRITIC}) {
      if (table[t].wide != table[t].out) table[t].add_gradient_to(gradient + b.table_at[t], nullptr);
      for (int64_t l = 0; l < b.layers; l++)
        layer[t][l].add_gradient_to(gradient + b.weight_at[t][l], l ? gradient + b.bias_at[t][l] : nullptr);
    }
    add_log_std_gradient(gradient);
  }

  // Outputs of a tower for items [from, to): out [items, accounts, outputs].
  void forward_items(int tower, int64_t from, int64_t to, float* out) {
    for_each_output(tower, from, to, [&](int64_t place, const float* output, int64_t size) {
      std::copy(output, output + size, out + place * size);
    });
  }

  // Scores made with `noise` [items, accounts, actions], and their log-density.
  void sample_items(int64_t from, int64_t to, const float* noise, float* scores, float* log_prob) {
    for_each_output(ACTOR, from, to, [&](int64_t place, const float* output, int64_t size) {
      log_prob[place] = sample_row(place, output, noise + place * size, scores + place * size);
    });
  }

 private:
  void encode_table(int64_t from, int64_t count, int t) {
    for (int64_t k = 0; k < count; k++) {
      const float* row = b.features + b.bar[item_index(from + k)] * b.table;
      std::copy(row, row + b.table, table_rows.begin() + k * b.table);
    }
    const Layer& y = table[t];
    matmul<ROW>({table_rows.data(), b.table, 1}, y.weight, y.wide, y.bias.data(), base[t].data(), y.wide, count, y.wide,
                b.table);
  }

  // Calls f(rows) for every tile of the accounts of `count` items, their accounts copied into `account`.
  template <class F>
  void for_each_tile(int64_t from, int64_t count, F f) {
    const int64_t total = count * b.accounts;
    for (int64_t r = 0; r < total; r += TILE) {
      const int64_t rows = std::min(TILE, total - r);
      for (int64_t i = 0; i < rows; i++) {
        item[i] = (r + i) / b.accounts;
        row_index[i] = item_index(from + item[i]) * b.accounts + (r + i) % b.accounts;
        const float* source = b.account + row_index[i] * b.own;
        std::copy(source, source + b.own, account.begin() + i * own_wide);
      }
      f(rows);
    }
  }

  // Calls f(place, output, size) for every account of items [from, to).
  template <class F>
  void for_each_output(int t, int64_t from, int64_t to, F f) {
    for (int64_t i = from; i < to; i += unit) {
      const int64_t count = std::min(unit, to - i);
      int64_t place = (p * b.items + i) * b.accounts;
      encode_table(i, count, t);
      for_each_tile(i, count, [&](int64_t rows) {
        forward(t, rows);
        const Layer& last = layer[t][b.layers - 1];
        for (int64_t r = 0; r < rows; r++) f(place++, outputs[t][b.layers - 1].data() + r * last.wide, last.out);
      });
    }
  }

  void forward(int t, int64_t rows) {
    Matrix in{account.data(), own_wide, 1};
    for (int64_t l = 0; l < b.layers; l++) {
      const Layer& y = layer[t][l];
      float* out = outputs[t][l].data();
      if (y.scalar) return forward_scalar(y, in, out, rows);
      if (l) {
        matmul<ROW>(in, y.weight, y.wide, y.bias.data(), out, y.wide, rows, y.wide, y.in);
      } else {
        for (int64_t r = 0; r < rows; r++) {
          const float* start = base[t].data() + item[r] * y.wide;
          std::copy(start, start + y.wide, out + r * y.wide);
        }
        matmul<PRESENT>(in, y.weight, y.wide, nullptr, out, y.wide, rows, y.wide, y.in);
      }
      if (l < b.layers - 1)
        for (int64_t i = 0; i < rows * y.wide; i += 8) store<float, 8>(out + i, tanh<8>(load<float, 8>(out + i)));
      in = {out, y.wide, 1};
    }
  }

  // A layer with one output, eight rows at a time: out [rows, 8], whose first column counts.
  static void forward_scalar(const Layer& y, Matrix in, float* out, int64_t rows) {
    for (int64_t r = 0; r < rows; r += 8) {
      V part[8] = {};
      const int64_t count = std::min<int64_t>(8, rows - r);
      for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < in.row_stride; j += 8)
          part[i] += load<float, 8>(in.data + (r + i) * in.row_stride + j) * load<float, 8>(&y.transposed[j]);
      const V sum = horizontal_sums(part) + y.bias[0];
      for (int64_t i = 0; i < count; i++) store<float, 8>(out + (r + i) * 8, V{sum[i]});
    }
  }

  // Leaves the gradient of the values in the first column of `back` [rows, 8].
  void value_loss(int64_t rows) {
    const float* value = outputs[CRITIC][b.layers - 1].data();
    for (int64_t r = 0; r < rows; r++) back[r * 8] = value_loss_gradient(r, value[r * 8]);
  }

  // From the gradient of the tower's outputs, in `back`, to those of all its weights.
  void backward(int t, int64_t rows) {
    for (int64_t l = b.layers - 1; l > 0; l--) {
      Layer& y = layer[t][l];
      const int64_t wide_in = padded(y.in);
      const float *g = back.data(), *in = outputs[t][l - 1].data();
      if (y.scalar) {
        backward_scalar(y, in, wide_in, rows);
      } else {
        matmul<PRESENT>({in, 1, wide_in}, g, y.wide, nullptr, y.grad.data(), y.wide, y.in, y.wide, rows);
        add_rows(g, y.wide, rows, y.grad_bias.data());
        matmul<ZERO>({g, y.wide, 1}, y.transposed.data(), wide_in, nullptr, previous.data(), wide_in, rows, wide_in,
                     y.out);
        for (int64_t i = 0; i < rows * wide_in; i += 8) {
          const V h = load<float, 8>(in + i);
          store<float, 8>(&previous[i], load<float, 8>(&previous[i]) * (1.0f - h * h));
        }
      }
      std::swap(back, previous);
    }
    Layer& y = layer[t][0];
    matmul<PRESENT>({account.data(), 1, own_wide}, back.data(), y.wide, nullptr, y.grad.data(), y.wide, y.in, y.wide,
                    rows);
    for (int64_t r = 0; r < rows;) {  // rows of an item are adjacent
      int64_t end = r + 1;
      while (end < rows && item[end] == item[r]) end++;
      add_rows(back.data() + r * y.wide, y.wide, end - r, grad_base[t].data() + item[r] * y.wide);
      r = end;
    }
  }
  static void add_rows(const float* g, int64_t wide, int64_t rows, float* to) {
    for (int64_t j = 0; j < wide; j += 8) {
      V sum = load<float, 8>(to + j);
      for (int64_t r = 0; r < rows; r++) sum += load<float, 8>(g + r * wide + j);
      store<float, 8>(to + j, sum);
    }
  }
  void backward_scalar(Layer& y, const float* in, int64_t wide_in, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) y.grad_bias[0] += back[r * 8];
    for (int64_t j = 0; j < wide_in; j += 8) {
      const V w = load<float, 8>(&y.transposed[j]);
      V sum = load<float, 8>(&y.grad[j]);
      for (int64_t r = 0; r < rows; r++) {
        const V h = load<float, 8>(in + r * wide_in + j);
        const float g = back[r * 8];
        sum += g * h;
        store<float, 8>(&previous[r * wide_in + j], g * w * (1.0f - h * h));
      }
      store<float, 8>(&y.grad[j], sum);
    }
  }
};

EXPORT_POLICY(MlpWorker, MlpBatch)
