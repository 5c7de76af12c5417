// An EquivariantPolicy on a CPU. A row of the table is encoded once for all accounts of an item; the tanh of every account,
// asset and unit is taken once and kept, in the second cache, for the way back. Widths are multiples of 8.
#include "ppo_update.h"

constexpr int64_t CHUNK = 32;  // accounts worked at a time
constexpr float WEIGHT_FLOOR = 1e-3f;

struct Batch : Data {
  int64_t assets, inputs, hidden, size;  // features an asset; widths of the encoding and of the code
  int64_t has_cash, softmax;
  const uint8_t* tradable;               // [days, assets], or null where all are
  // Where each tensor begins in a member's row; cash and inertia are read only where there are such.
  int64_t encode_w, encode_b, code_w, context_w, code_b, holding_w, score_w, linear_w, cash_w, cash_b, inertia;
  int64_t value_encode_w, value_encode_b, value_context_w, value_holding_w, value_b, value_w, value_out_b;
};

class Worker : public Losses {
  const Batch& b;
  const int64_t n, f, h, k, own;
  const float* row = nullptr;                                  // the member's parameters
  Floats code_back, value_back;                                // code_w and value_holding_w turned: [k, h]
  // Of one item: what the table's row is encoded to, and the gradients on their way back.
  const float *x = nullptr, *account = nullptr;                // [n, f], [accounts, own]
  const uint8_t* open = nullptr;                               // [n] or null
  float per_asset = 0;                                         // one over the assets that can be traded
  Floats encoded, context, shared, code, linear;               // [n, h], [h], [k], [n, k], [n]
  Floats value_encoded, value_context, value_shared;           // [n, h], [h], [k]
  float cash_score = 0;
  Floats grad_code, grad_encoded, grad_context, grad_linear;   // [n, k], [n, h], [h], [n]
  Floats grad_value_encoded, grad_value_shared;                // [n, h], [k]
  float grad_cash = 0;
  // Of a chunk of accounts.
  Floats kept, means, by_asset, held_by_asset, parts;          // tanh [n, k / 8, CHUNK, 8]; [CHUNK, action_wide]; [CHUNK]s
  Floats held, mixed, grad_held;                               // [CHUNK, h], [CHUNK, k], [CHUNK, h]

 public:
  explicit Worker(const Batch& batch)
      : Losses(batch, batch.actions), b(batch), n(b.assets), f(b.inputs), h(b.hidden), k(b.size), own(b.own) {
    for (Floats* to : {&encoded, &value_encoded, &grad_encoded, &grad_value_encoded}) to->resize(n * h);
    for (Floats* to : {&context, &value_context, &grad_context}) to->resize(h);
    for (Floats* to : {&shared, &value_shared, &grad_value_shared}) to->resize(k);
    code.resize(n * k), grad_code.resize(n * k), linear.resize(n), grad_linear.resize(n);
    kept.resize(n * k * CHUNK), means.resize(CHUNK * action_wide);
    by_asset.resize(CHUNK + 1), held_by_asset.resize(CHUNK + 1), parts.resize(CHUNK * 8);
    held.resize(CHUNK * h), mixed.resize(CHUNK * k), grad_held.resize(CHUNK * h);
    code_back.resize(k * h), value_back.resize(k * h);
  }

  void take(int64_t member, bool learns) {
    take_losses(member, learns);
    row = b.flat + p * b.parameters;
    for (int64_t i = 0; learns && i < h; i++)
      for (int64_t j = 0; j < k; j++) {
        code_back[j * h + i] = row[b.code_w + i * k + j];
        value_back[j * h + i] = row[b.value_holding_w + i * k + j];
      }
  }

  // Gradient of the loss over items [from, to), added to `gradient` [parameters].
  void learn(int64_t from, int64_t to, float* gradient) {
    for (int64_t i = from; i < to; i++) {
      enter(i), encode_actor(), encode_critic();
      for (Floats* x : {&grad_code, &grad_linear, &grad_value_encoded, &grad_value_shared})
        std::fill(x->begin(), x->end(), 0.0f);
      grad_cash = 0;
      for (int64_t a = 0; a < b.accounts; a += CHUNK) {
        const int64_t many = std::min(CHUNK, b.accounts - a);
        for (int64_t r = 0; r < many; r++) where[r] = place_of(i) * b.accounts + a + r;
        gather(many);
        score(a, many);
        policy_loss(means.data(), many);
        unscore(a, many, gradient);
        value(a, many);
        unvalue(a, many, gradient);
      }
      unencode_actor(gradient), unencode_critic(gradient);
    }
    add_spreads(gradient);
  }

  void say(int t, int64_t from, int64_t to, float* out) {
    each_chunk(t, from, to, [&](int64_t r, int64_t place) {
      if (t) out[place] = said_value(r);
      else std::copy(&means[r * action_wide], &means[r * action_wide] + b.actions, out + place * b.actions);
    });
  }
  void draw(int64_t from, int64_t to, const float* noise, float* scores, float* chance) {
    each_chunk(0, from, to, [&](int64_t r, int64_t place) {
      chance[place] = draw_row(&means[r * action_wide], noise + place * b.actions, scores + place * b.actions);
    });
  }

 private:
  template <class F>
  void each_chunk(int t, int64_t from, int64_t to, F each) {
    for (int64_t i = from; i < to; i++) {
      enter(i);
      if (t) encode_critic();
      else encode_actor();
      for (int64_t a = 0; a < b.accounts; a += CHUNK) {
        const int64_t many = std::min(CHUNK, b.accounts - a);
        if (t) value(a, many);
        else score(a, many);
        for (int64_t r = 0; r < many; r++) each(r, (p * b.items + i) * b.accounts + a + r);
      }
    }
  }

  void enter(int64_t i) {
    const int64_t place = place_of(i), day = b.day[place];
    x = b.features + day * b.table, account = b.account + place * b.accounts * own;
    open = b.tradable ? b.tradable + day * n : nullptr;
    int64_t count = 0;
    for (int64_t a = 0; a < n; a++) count += open ? open[a] : 1;
    per_asset = 1 / float(std::max<int64_t>(count, 1));
  }
  bool counts(int64_t a) const { return !open || open[a]; }

  // tanh(x w + bias) of every asset, and the mean of those that can be traded.
  void encode(int64_t w, int64_t bias, Floats& to, Floats& pooled) {
    product<ROW>({x, f, 1}, row + w, h, row + bias, to.data(), h, n, h, f);
    std::fill(pooled.begin(), pooled.end(), 0.0f);
    for (int64_t a = 0; a < n; a++) {
      const float share = counts(a) ? per_asset : 0;
      for (int64_t i = 0; i < h; i += 8) {
        const V y = tangent<8>(load<float, 8>(&to[a * h + i]));
        store<float, 8>(&to[a * h + i], y);
        store<float, 8>(&pooled[i], load<float, 8>(&pooled[i]) + share * y);
      }
    }
  }
  void encode_actor() {
    encode(b.encode_w, b.encode_b, encoded, context);
    product<ROW>({context.data(), h, 1}, row + b.context_w, k, row + b.code_b, shared.data(), k, 1, k, h);
    product<ROW>({encoded.data(), h, 1}, row + b.code_w, k, shared.data(), code.data(), k, n, k, h);
    for (int64_t a = 0; a < n; a++) {
      linear[a] = 0;
      for (int64_t i = 0; i < f; i++) linear[a] += x[a * f + i] * row[b.linear_w + i];
    }
    if (!b.has_cash) return;
    cash_score = row[b.cash_b];
    for (int64_t i = 0; i < h; i++) cash_score += context[i] * row[b.cash_w + i];
  }
  void encode_critic() {
    encode(b.value_encode_w, b.value_encode_b, value_encoded, value_context);
    product<ROW>({value_context.data(), h, 1}, row + b.value_context_w, k, row + b.value_b, value_shared.data(), k, 1, k, h);
  }

  // Mean scores of accounts [a0, a0 + many) of the item into `means`.
  void score(int64_t a0, int64_t many) {
    const float *u = row + b.holding_w, *w = row + b.score_w;
    const int64_t cash = b.has_cash;
    for (int64_t a = 0; a < n; a++) {
      std::fill(parts.begin(), parts.end(), 0.0f);
      for (int64_t r = 0; r < many; r++) by_asset[r] = account[(a0 + r) * own + 1 + a] * float(n);
      for (int64_t i = 0; i < k; i += 8) {
        const V ci = load<float, 8>(&code[a * k + i]), ui = load<float, 8>(u + i), wi = load<float, 8>(w + i);
        float* to = &kept[(a * k + i) * CHUNK];
        for (int64_t r = 0; r < many; r++) {
          const V t = tangent<8>(ci + by_asset[r] * ui);
          store<float, 8>(to + r * 8, t);
          store<float, 8>(&parts[r * 8], load<float, 8>(&parts[r * 8]) + wi * t);
        }
        if (many % 2) store<float, 8>(to + many * 8, V{});  // the way back takes two rows at a time
      }
      for (int64_t r = 0; r < many; r++) {
        float sum = linear[a];
        for (int j = 0; j < 8; j++) sum += parts[r * 8 + j];
        means[r * action_wide + cash + a] = sum;
      }
    }
    for (int64_t r = 0; r < many; r++) {
      float* to = &means[r * action_wide];
      if (cash) to[0] = cash_score;
      if (b.softmax)
        for (int64_t i = 0; i < b.actions; i++) to[i] += row[b.inertia] * kept_log(a0 + r, i);
    }
  }
  // What inertia multiplies: the logarithm of a holding in units of 1/N; i counts the actions.
  float kept_log(int64_t a, int64_t i) const {
    return std::log(std::max(account[a * own + i + 1 - b.has_cash] * float(n), WEIGHT_FLOOR));
  }

  // From the gradient of the means, in `back`, to those of the code and of all that follows it.
  void unscore(int64_t a0, int64_t many, float* gradient) {
    const int64_t cash = b.has_cash;
    float *gu = gradient + b.holding_w, *gw = gradient + b.score_w;
    const float* w = row + b.score_w;
    for (int64_t a = 0; a < n; a++) {
      for (int64_t r = 0; r < many; r++) {
        by_asset[r] = back[r * action_wide + cash + a];
        held_by_asset[r] = by_asset[r] * account[(a0 + r) * own + 1 + a] * float(n);
        grad_linear[a] += by_asset[r];
      }
      by_asset[many] = held_by_asset[many] = 0;
      for (int64_t i = 0; i < k; i += 8) {
        const float* t = &kept[(a * k + i) * CHUNK];
        // Two sums each: one alone would wait for its last addition.
        V for_code[2] = {}, for_u[2] = {}, for_w[2] = {};
        for (int64_t r = 0; r < many; r += 2)
#pragma GCC unroll 2
          for (int j = 0; j < 2; j++) {
            const V y = load<float, 8>(t + (r + j) * 8), slope = 1.0f - y * y;
            for_code[j] += by_asset[r + j] * slope;
            for_u[j] += held_by_asset[r + j] * slope;
            for_w[j] += by_asset[r + j] * y;
          }
        const V wi = load<float, 8>(w + i);
        float* to = &grad_code[a * k + i];
        store<float, 8>(to, load<float, 8>(to) + (for_code[0] + for_code[1]) * wi);
        store<float, 8>(gu + i, load<float, 8>(gu + i) + (for_u[0] + for_u[1]) * wi);
        store<float, 8>(gw + i, load<float, 8>(gw + i) + for_w[0] + for_w[1]);
      }
    }
    for (int64_t r = 0; r < many; r++) {
      const float* g = &back[r * action_wide];
      if (cash) grad_cash += g[0];
      for (int64_t i = 0; b.softmax && i < b.actions; i++) gradient[b.inertia] += g[i] * kept_log(a0 + r, i);
    }
  }

  // `mixed` of accounts [a0, a0 + many): the tanh that the value is a product of.
  void value(int64_t a0, int64_t many) {
    const Left holding{account + a0 * own + 1, own, 1};
    product<ZERO>(holding, value_encoded.data(), h, nullptr, held.data(), h, many, h, n);
    product<ROW>({held.data(), h, 1}, row + b.value_holding_w, k, value_shared.data(), mixed.data(), k, many, k, h);
    for (int64_t i = 0; i < many * k; i += 8) store<float, 8>(&mixed[i], tangent<8>(load<float, 8>(&mixed[i])));
  }
  float said_value(int64_t r) const {
    V sum = {};
    for (int64_t i = 0; i < k; i += 8) sum += load<float, 8>(&mixed[r * k + i]) * load<float, 8>(row + b.value_w + i);
    float total = row[b.value_out_b];
    for (int j = 0; j < 8; j++) total += sum[j];
    return total;
  }
  void unvalue(int64_t a0, int64_t many, float* gradient) {
    float* gw = gradient + b.value_w;
    for (int64_t r = 0; r < many; r++) {
      const float g = value_slope(r, said_value(r));
      gradient[b.value_out_b] += g;
      for (int64_t i = 0; i < k; i += 8) {
        const V z = load<float, 8>(&mixed[r * k + i]), slope = g * load<float, 8>(row + b.value_w + i) * (1.0f - z * z);
        store<float, 8>(gw + i, load<float, 8>(gw + i) + g * z);
        store<float, 8>(&mixed[r * k + i], slope);
        store<float, 8>(&grad_value_shared[i], load<float, 8>(&grad_value_shared[i]) + slope);
      }
    }
    product<SUM>({held.data(), 1, h}, mixed.data(), k, nullptr, gradient + b.value_holding_w, k, h, k, many);
    product<ZERO>({mixed.data(), k, 1}, value_back.data(), h, nullptr, grad_held.data(), h, many, h, k);
    product<SUM>({account + a0 * own + 1, 1, own}, grad_held.data(), h, nullptr, grad_value_encoded.data(), h, n, h, many);
  }

  // From the gradient of the pooled row through one matrix: adds that matrix's and gives that of what it was fed with.
  void unpool(const Floats& pooled, const Floats& grad, int64_t w, int64_t bias, float* gradient) {
    product<SUM>({pooled.data(), 1, h}, grad.data(), k, nullptr, gradient + w, k, h, k, 1);
    for (int64_t j = 0; j < k; j++) gradient[bias + j] += grad[j];
    for (int64_t i = 0; i < h; i++) {
      V sum = {};
      for (int64_t j = 0; j < k; j += 8) sum += load<float, 8>(row + w + i * k + j) * load<float, 8>(&grad[j]);
      grad_context[i] = 0;
      for (int j = 0; j < 8; j++) grad_context[i] += sum[j];
    }
  }
  // From the gradients of every asset's encoding and of their mean to the first layer's.
  void unencode(const Floats& of, Floats& grad, int64_t w, int64_t bias, float* gradient) {
    for (int64_t a = 0; a < n; a++) {
      const float share = counts(a) ? per_asset : 0;
      for (int64_t i = 0; i < h; i += 8) {
        const V y = load<float, 8>(&of[a * h + i]), own = load<float, 8>(&grad[a * h + i]);
        const V slope = (own + share * load<float, 8>(&grad_context[i])) * (1.0f - y * y);
        store<float, 8>(&grad[a * h + i], slope);
        store<float, 8>(gradient + bias + i, load<float, 8>(gradient + bias + i) + slope);
      }
    }
    product<SUM>({x, 1, f}, grad.data(), h, nullptr, gradient + w, h, f, h, n);
  }
  void unencode_actor(float* gradient) {
    std::fill(shared.begin(), shared.end(), 0.0f);  // from here on its gradient
    for (int64_t a = 0; a < n; a++)
      for (int64_t j = 0; j < k; j++) shared[j] += grad_code[a * k + j];
    unpool(context, shared, b.context_w, b.code_b, gradient);
    if (b.has_cash) {
      gradient[b.cash_b] += grad_cash;
      for (int64_t i = 0; i < h; i++) {
        gradient[b.cash_w + i] += grad_cash * context[i];
        grad_context[i] += grad_cash * row[b.cash_w + i];
      }
    }
    product<SUM>({encoded.data(), 1, h}, grad_code.data(), k, nullptr, gradient + b.code_w, k, h, k, n);
    product<ZERO>({grad_code.data(), k, 1}, code_back.data(), h, nullptr, grad_encoded.data(), h, n, h, k);
    for (int64_t a = 0; a < n; a++)
      for (int64_t i = 0; i < f; i++) gradient[b.linear_w + i] += grad_linear[a] * x[a * f + i];
    unencode(encoded, grad_encoded, b.encode_w, b.encode_b, gradient);
  }
  void unencode_critic(float* gradient) {
    unpool(value_context, grad_value_shared, b.value_context_w, b.value_b, gradient);
    unencode(value_encoded, grad_value_encoded, b.value_encode_w, b.value_encode_b, gradient);
  }
};

EXPORT_POLICY(Worker, Batch)
