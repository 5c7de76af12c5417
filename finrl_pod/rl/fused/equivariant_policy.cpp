// PPO with an equivariant policy: one network for every asset, and their mean as context. A row of the table is encoded
// once for all accounts of an item; the tanh of every account, asset and unit is computed once and kept, in the second
// cache, for the backward pass. Hidden widths are multiples of 8.
#include "ppo_update.h"

constexpr int64_t CHUNK = 32;          // accounts worked at a time
constexpr float WEIGHT_FLOOR = 1e-3f;  // of a holding in units of 1/N, before its logarithm

struct EquivariantBatch : Rollout {
  int64_t inputs, hidden, size, softmax;  // inputs: features per asset; widths of the encoding and of the code
  // Where each tensor starts in a member's row; those of cash and inertia are read only if the policy has them.
  int64_t encode_w, encode_b, code_w, context_w, code_b, holding_w, score_w, linear_w, cash_w, cash_b, inertia;
  int64_t value_encode_w, value_encode_b, value_context_w, value_holding_w, value_b, value_w, value_out_b;
};

class EquivariantWorker : public PolicyWorker {
  const EquivariantBatch& b;
  const int64_t n, f, h, k, own;
  const float* row = nullptr;                            // the member's parameters
  Floats code_w_transposed, value_holding_w_transposed;  // [k, h]
  // Of one item: the encoding of the table's row, and the gradients of its parts.
  const float *x = nullptr, *account = nullptr;       // [n, f], [accounts, own]
  const uint8_t* tradable_row = nullptr;              // [n] or null
  float per_asset = 0;                                // 1 / the number of tradable assets
  Floats encoded, context, shared, code, linear;      // [n, h], [h], [k], [n, k], [n]
  Floats value_encoded, value_context, value_shared;  // [n, h], [h], [k]
  float cash_score = 0;
  Floats grad_code, grad_encoded, grad_context, grad_linear;  // [n, k], [n, h], [h], [n]
  Floats grad_value_encoded, grad_value_shared;               // [n, h], [k]
  float grad_cash = 0;
  // Of a chunk of accounts.
  Floats activations, means;              // tanh [n, k / 8, CHUNK, 8]; [CHUNK, action_wide]
  Floats of_asset, of_asset_held, parts;  // [CHUNK + 1], [CHUNK + 1], [CHUNK, 8]
  Floats held, value_hidden, grad_held;   // [CHUNK, h], [CHUNK, k], [CHUNK, h]

 public:
  explicit EquivariantWorker(const EquivariantBatch& batch)
      : PolicyWorker(batch, batch.actions), b(batch), n(b.assets), f(b.inputs), h(b.hidden), k(b.size), own(b.own) {
    for (Floats* to : {&encoded, &value_encoded, &grad_encoded, &grad_value_encoded}) to->resize(n * h);
    for (Floats* to : {&context, &value_context, &grad_context}) to->resize(h);
    for (Floats* to : {&shared, &value_shared, &grad_value_shared}) to->resize(k);
    code.resize(n * k), grad_code.resize(n * k), linear.resize(n), grad_linear.resize(n);
    activations.resize(n * k * CHUNK), means.resize(CHUNK * action_wide);
    of_asset.resize(CHUNK + 1), of_asset_held.resize(CHUNK + 1), parts.resize(CHUNK * 8);
    held.resize(CHUNK * h), value_hidden.resize(CHUNK * k), grad_held.resize(CHUNK * h);
    code_w_transposed.resize(k * h), value_holding_w_transposed.resize(k * h);
  }

  void begin_member(int64_t member, bool training) {
    begin_losses(member, training);
    row = b.flat + p * b.parameters;
    for (int64_t i = 0; training && i < h; i++)
      for (int64_t j = 0; j < k; j++) {
        code_w_transposed[j * h + i] = row[b.code_w + i * k + j];
        value_holding_w_transposed[j * h + i] = row[b.value_holding_w + i * k + j];
      }
  }

  // Adds the gradient of the loss over items [from, to) to `gradient` [parameters].
  void accumulate_gradient(int64_t from, int64_t to, float* gradient) {
    for (int64_t i = from; i < to; i++) {
      begin_item(i), encode_actor(), encode_critic();
      for (Floats* x : {&grad_code, &grad_linear, &grad_value_encoded, &grad_value_shared})
        std::fill(x->begin(), x->end(), 0.0f);
      grad_cash = 0;
      for (int64_t a = 0; a < b.accounts; a += CHUNK) {
        const int64_t rows = std::min(CHUNK, b.accounts - a);
        for (int64_t r = 0; r < rows; r++) row_index[r] = item_index(i) * b.accounts + a + r;
        gather_rows(rows);
        score_forward(a, rows);
        policy_loss(means.data(), rows);
        score_backward(a, rows, gradient);
        value_forward(a, rows);
        value_backward(a, rows, gradient);
      }
      encode_actor_backward(gradient), encode_critic_backward(gradient);
    }
    add_log_std_gradient(gradient);
  }

  void forward_items(int t, int64_t from, int64_t to, float* out) {
    for_each_output(t, from, to, [&](int64_t r, int64_t place) {
      if (t == CRITIC)
        out[place] = value_of(r);
      else
        std::copy(&means[r * action_wide], &means[r * action_wide] + b.actions, out + place * b.actions);
    });
  }
  void sample_items(int64_t from, int64_t to, const float* noise, float* scores, float* log_prob) {
    for_each_output(ACTOR, from, to, [&](int64_t r, int64_t place) {
      log_prob[place] =
          sample_row(place, &means[r * action_wide], noise + place * b.actions, scores + place * b.actions);
    });
  }

 private:
  template <class F>
  void for_each_output(int t, int64_t from, int64_t to, F each) {
    for (int64_t i = from; i < to; i++) {
      begin_item(i);
      if (t == CRITIC)
        encode_critic();
      else
        encode_actor();
      for (int64_t a = 0; a < b.accounts; a += CHUNK) {
        const int64_t rows = std::min(CHUNK, b.accounts - a);
        if (t == CRITIC)
          value_forward(a, rows);
        else
          score_forward(a, rows);
        for (int64_t r = 0; r < rows; r++) each(r, (p * b.items + i) * b.accounts + a + r);
      }
    }
  }

  void begin_item(int64_t i) {
    const int64_t place = item_index(i), bar = b.bar[place];
    x = b.features + bar * b.table, account = b.account + place * b.accounts * own;
    tradable_row = b.tradable ? b.tradable + bar * n : nullptr;
    int64_t count = 0;
    for (int64_t a = 0; a < n; a++) count += tradable_row ? tradable_row[a] : 1;
    per_asset = 1 / float(std::max<int64_t>(count, 1));
  }
  bool is_tradable(int64_t a) const { return !tradable_row || tradable_row[a]; }

  // tanh(x w + bias) of every asset, and the mean over the tradable ones.
  void encode_assets(int64_t w, int64_t bias, Floats& to, Floats& pooled) {
    matmul<ROW>({x, f, 1}, row + w, h, row + bias, to.data(), h, n, h, f);
    std::fill(pooled.begin(), pooled.end(), 0.0f);
    for (int64_t a = 0; a < n; a++) {
      const float share = is_tradable(a) ? per_asset : 0;
      for (int64_t i = 0; i < h; i += 8) {
        const V y = tanh<8>(load<float, 8>(&to[a * h + i]));
        store<float, 8>(&to[a * h + i], y);
        store<float, 8>(&pooled[i], load<float, 8>(&pooled[i]) + share * y);
      }
    }
  }
  void encode_actor() {
    encode_assets(b.encode_w, b.encode_b, encoded, context);
    matmul<ROW>({context.data(), h, 1}, row + b.context_w, k, row + b.code_b, shared.data(), k, 1, k, h);
    matmul<ROW>({encoded.data(), h, 1}, row + b.code_w, k, shared.data(), code.data(), k, n, k, h);
    for (int64_t a = 0; a < n; a++) {
      linear[a] = 0;
      for (int64_t i = 0; i < f; i++) linear[a] += x[a * f + i] * row[b.linear_w + i];
    }
    if (!b.has_cash) return;
    cash_score = row[b.cash_b];
    for (int64_t i = 0; i < h; i++) cash_score += context[i] * row[b.cash_w + i];
  }
  void encode_critic() {
    encode_assets(b.value_encode_w, b.value_encode_b, value_encoded, value_context);
    matmul<ROW>({value_context.data(), h, 1}, row + b.value_context_w, k, row + b.value_b, value_shared.data(), k, 1, k,
                h);
  }

  // Mean scores of accounts [a0, a0 + rows) of the item, into `means`.
  void score_forward(int64_t a0, int64_t rows) {
    const float *u = row + b.holding_w, *w = row + b.score_w;
    const int64_t cash = b.has_cash;
    for (int64_t a = 0; a < n; a++) {
      std::fill(parts.begin(), parts.end(), 0.0f);
      for (int64_t r = 0; r < rows; r++) of_asset[r] = account[(a0 + r) * own + 1 + a] * float(n);
      for (int64_t i = 0; i < k; i += 8) {
        const V ci = load<float, 8>(&code[a * k + i]), ui = load<float, 8>(u + i), wi = load<float, 8>(w + i);
        float* to = &activations[(a * k + i) * CHUNK];
        for (int64_t r = 0; r < rows; r++) {
          const V t = tanh<8>(ci + of_asset[r] * ui);
          store<float, 8>(to + r * 8, t);
          store<float, 8>(&parts[r * 8], load<float, 8>(&parts[r * 8]) + wi * t);
        }
        if (rows % 2) store<float, 8>(to + rows * 8, V{});  // the backward pass takes two rows at a time
      }
      for (int64_t r = 0; r < rows; r++) {
        float sum = linear[a];
        for (int j = 0; j < 8; j++) sum += parts[r * 8 + j];
        means[r * action_wide + cash + a] = sum;
      }
    }
    for (int64_t r = 0; r < rows; r++) {
      float* to = &means[r * action_wide];
      if (cash) to[0] = cash_score;
      if (b.softmax)
        for (int64_t i = 0; i < b.actions; i++) to[i] += row[b.inertia] * log_holding(a0 + r, i);
    }
  }
  // The logarithm of a holding in units of 1/N, which inertia multiplies; i: index of the action.
  float log_holding(int64_t a, int64_t i) const {
    return std::log(std::max(account[a * own + i + 1 - b.has_cash] * float(n), WEIGHT_FLOOR));
  }

  // From the gradient of the means, in `back`, to those of the code and of the parameters after it.
  void score_backward(int64_t a0, int64_t rows, float* gradient) {
    const int64_t cash = b.has_cash;
    float *gu = gradient + b.holding_w, *gw = gradient + b.score_w;
    const float* w = row + b.score_w;
    for (int64_t a = 0; a < n; a++) {
      for (int64_t r = 0; r < rows; r++) {
        of_asset[r] = back[r * action_wide + cash + a];
        of_asset_held[r] = of_asset[r] * account[(a0 + r) * own + 1 + a] * float(n);
        grad_linear[a] += of_asset[r];
      }
      of_asset[rows] = of_asset_held[rows] = 0;
      for (int64_t i = 0; i < k; i += 8) {
        const float* t = &activations[(a * k + i) * CHUNK];
        // Two sums each: a single one would wait for its last addition.
        V for_code[2] = {}, for_u[2] = {}, for_w[2] = {};
        for (int64_t r = 0; r < rows; r += 2)
#pragma GCC unroll 2
          for (int j = 0; j < 2; j++) {
            const V y = load<float, 8>(t + (r + j) * 8), slope = 1.0f - y * y;
            for_code[j] += of_asset[r + j] * slope;
            for_u[j] += of_asset_held[r + j] * slope;
            for_w[j] += of_asset[r + j] * y;
          }
        const V wi = load<float, 8>(w + i);
        float* to = &grad_code[a * k + i];
        store<float, 8>(to, load<float, 8>(to) + (for_code[0] + for_code[1]) * wi);
        store<float, 8>(gu + i, load<float, 8>(gu + i) + (for_u[0] + for_u[1]) * wi);
        store<float, 8>(gw + i, load<float, 8>(gw + i) + for_w[0] + for_w[1]);
      }
    }
    for (int64_t r = 0; r < rows; r++) {
      const float* g = &back[r * action_wide];
      if (cash) grad_cash += g[0];
      for (int64_t i = 0; b.softmax && i < b.actions; i++) gradient[b.inertia] += g[i] * log_holding(a0 + r, i);
    }
  }

  // The hidden layer of the value of accounts [a0, a0 + rows), into `value_hidden`.
  void value_forward(int64_t a0, int64_t rows) {
    const Matrix holding{account + a0 * own + 1, own, 1};
    matmul<ZERO>(holding, value_encoded.data(), h, nullptr, held.data(), h, rows, h, n);
    matmul<ROW>({held.data(), h, 1}, row + b.value_holding_w, k, value_shared.data(), value_hidden.data(), k, rows, k,
                h);
    for (int64_t i = 0; i < rows * k; i += 8)
      store<float, 8>(&value_hidden[i], tanh<8>(load<float, 8>(&value_hidden[i])));
  }
  float value_of(int64_t r) const {
    V sum = {};
    for (int64_t i = 0; i < k; i += 8)
      sum += load<float, 8>(&value_hidden[r * k + i]) * load<float, 8>(row + b.value_w + i);
    float total = row[b.value_out_b];
    for (int j = 0; j < 8; j++) total += sum[j];
    return total;
  }
  void value_backward(int64_t a0, int64_t rows, float* gradient) {
    float* gw = gradient + b.value_w;
    for (int64_t r = 0; r < rows; r++) {
      const float g = value_loss_gradient(r, value_of(r));
      gradient[b.value_out_b] += g;
      for (int64_t i = 0; i < k; i += 8) {
        const V z = load<float, 8>(&value_hidden[r * k + i]),
                slope = g * load<float, 8>(row + b.value_w + i) * (1.0f - z * z);
        store<float, 8>(gw + i, load<float, 8>(gw + i) + g * z);
        store<float, 8>(&value_hidden[r * k + i], slope);
        store<float, 8>(&grad_value_shared[i], load<float, 8>(&grad_value_shared[i]) + slope);
      }
    }
    matmul<PRESENT>({held.data(), 1, h}, value_hidden.data(), k, nullptr, gradient + b.value_holding_w, k, h, k, rows);
    matmul<ZERO>({value_hidden.data(), k, 1}, value_holding_w_transposed.data(), h, nullptr, grad_held.data(), h, rows,
                 h, k);
    matmul<PRESENT>({account + a0 * own + 1, 1, own}, grad_held.data(), h, nullptr, grad_value_encoded.data(), h, n, h,
                    rows);
  }

  // From `grad`, of the context times a matrix: adds the gradients of matrix and bias, sets that of the context.
  void context_backward(const Floats& pooled, const Floats& grad, int64_t w, int64_t bias, float* gradient) {
    matmul<PRESENT>({pooled.data(), 1, h}, grad.data(), k, nullptr, gradient + w, k, h, k, 1);
    for (int64_t j = 0; j < k; j++) gradient[bias + j] += grad[j];
    for (int64_t i = 0; i < h; i++) {
      V sum = {};
      for (int64_t j = 0; j < k; j += 8) sum += load<float, 8>(row + w + i * k + j) * load<float, 8>(&grad[j]);
      grad_context[i] = 0;
      for (int j = 0; j < 8; j++) grad_context[i] += sum[j];
    }
  }
  // From the gradients of every asset's encoding and of the context to those of the first layer.
  void encode_assets_backward(const Floats& of, Floats& grad, int64_t w, int64_t bias, float* gradient) {
    for (int64_t a = 0; a < n; a++) {
      const float share = is_tradable(a) ? per_asset : 0;
      for (int64_t i = 0; i < h; i += 8) {
        const V y = load<float, 8>(&of[a * h + i]), own = load<float, 8>(&grad[a * h + i]);
        const V slope = (own + share * load<float, 8>(&grad_context[i])) * (1.0f - y * y);
        store<float, 8>(&grad[a * h + i], slope);
        store<float, 8>(gradient + bias + i, load<float, 8>(gradient + bias + i) + slope);
      }
    }
    matmul<PRESENT>({x, 1, f}, grad.data(), h, nullptr, gradient + w, h, f, h, n);
  }
  void encode_actor_backward(float* gradient) {
    std::fill(shared.begin(), shared.end(), 0.0f);  // from here on the gradient
    for (int64_t a = 0; a < n; a++)
      for (int64_t j = 0; j < k; j++) shared[j] += grad_code[a * k + j];
    context_backward(context, shared, b.context_w, b.code_b, gradient);
    if (b.has_cash) {
      gradient[b.cash_b] += grad_cash;
      for (int64_t i = 0; i < h; i++) {
        gradient[b.cash_w + i] += grad_cash * context[i];
        grad_context[i] += grad_cash * row[b.cash_w + i];
      }
    }
    matmul<PRESENT>({encoded.data(), 1, h}, grad_code.data(), k, nullptr, gradient + b.code_w, k, h, k, n);
    matmul<ZERO>({grad_code.data(), k, 1}, code_w_transposed.data(), h, nullptr, grad_encoded.data(), h, n, h, k);
    for (int64_t a = 0; a < n; a++)
      for (int64_t i = 0; i < f; i++) gradient[b.linear_w + i] += grad_linear[a] * x[a * f + i];
    encode_assets_backward(encoded, grad_encoded, b.encode_w, b.encode_b, gradient);
  }
  void encode_critic_backward(float* gradient) {
    context_backward(value_context, grad_value_shared, b.value_context_w, b.value_b, gradient);
    encode_assets_backward(value_encoded, grad_value_encoded, b.value_encode_w, b.value_encode_b, gradient);
  }
};

EXPORT_POLICY(EquivariantWorker, EquivariantBatch)
