// Gradients of one actor-critic update for plain ReLU networks on flat observations: of the critics towards the value
// of the next state, and of the actor towards higher values. Stochastic actors sample from a squashed Gaussian (SAC,
// REDQ); the others act by a tanh, and the target action may be smoothed by noise (DDPG, TD3). The definition is each
// algorithm's loss through autograd; `tests/rl/test_actor_critic_update.py` compares the two.
//
// P members, M critics per member, B transitions, A numbers of an action.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "matmul.h"

constexpr int64_t MAX_LAYERS = 9;  // of a network; as in actor_critic_update.py

struct Net {
  int64_t layers, parameters, width[MAX_LAYERS + 1];  // width[0]: of the input
  int64_t weight_at[MAX_LAYERS], bias_at[MAX_LAYERS];
};

// How an ensemble of critics becomes one value; SUBSET: the minimum of the critics drawn for this update.
enum EnsembleRule { MIN, MEAN, SUBSET, FIRST };

struct Workspace;

struct Update {
  int64_t members, critics, batch, obs_size, actions;
  int64_t stochastic, smoothed, updates_actor;   // updates_actor: update_actor follows on the same batch
  int64_t target_rule, actor_rule, subset_size;  // ensemble rules of the target and of the actor's objective
  Net actor, critic;
  const float *actors, *target_actors;                       // [P, D]
  const float *values, *target_values;                       // [P * M, D]
  const float *obs, *action, *reward, *not_done, *next_obs;  // [P, B, ..]
  const float* noise;  // [P, 2, B, A] (next, now) if stochastic, [P, B, A] if smoothed
  const float *temperature, *discount, *target_noise, *noise_clip;  // [P]
  const int64_t* subset;                                            // [P, subset_size]
  float* gradient;                                                  // of the critics [P * M, D] or of the actors [P, D]
  float* metrics;  // critics: losses, mean values [2, P * M]; actor: loss, entropy [2, P]
  Workspace* workspace;
};

// ---------------------------------------------------------------- a plain network

typedef std::vector<std::vector<float>> Activations;  // outputs of each layer [batch, width]; the first is the input

static void forward(const Net& net, const float* params, Activations& activations, int64_t batch) {
  activations.resize(net.layers + 1);
  for (int64_t l = 0; l < net.layers; l++) {
    const int64_t in = net.width[l], out = net.width[l + 1];
    std::vector<float>& y = activations[l + 1];
    y.resize(batch * out);
    matmul_packed(batch, out, in, {activations[l].data(), in, 1}, {params + net.weight_at[l], out, 1}, y.data(), out,
                  1);
    const float* bias = params + net.bias_at[l];
    for (int64_t i = 0; i < batch; i++) {
      float* row = y.data() + i * out;
      if (l + 1 < net.layers)
        for (int64_t j = 0; j < out; j++) {
          const float value = row[j] + bias[j];
          row[j] = value < 0 ? 0 : value;  // ReLU; NaN stays
        }
      else
        for (int64_t j = 0; j < out; j++) row[j] += bias[j];
    }
  }
}

// gradient: of the output [batch, last width]; with to_input it is replaced by the gradient of the input. Writes the
// gradient of the parameters to param_gradient unless that is null.
static void backward(const Net& net, const float* params, const Activations& activations, std::vector<float>& gradient,
                     float* param_gradient, int64_t batch, bool to_input) {
  static thread_local std::vector<float> previous;
  for (int64_t l = net.layers - 1; l >= 0; l--) {
    const int64_t in = net.width[l], out = net.width[l + 1];
    if (param_gradient) {
      matmul_packed(in, out, batch, {activations[l].data(), 1, in}, {gradient.data(), out, 1},
                    param_gradient + net.weight_at[l], out, 1);
      float* bias = param_gradient + net.bias_at[l];
      std::fill(bias, bias + out, 0.f);
      for (int64_t i = 0; i < batch; i++)
        for (int64_t j = 0; j < out; j++) bias[j] += gradient[i * out + j];
    }
    if (!l && !to_input) return;
    previous.resize(batch * in);
    matmul_packed(batch, in, out, {gradient.data(), out, 1}, {params + net.weight_at[l], 1, out}, previous.data(), in,
                  1);
    if (l)
      for (int64_t i = 0; i < batch * in; i++) previous[i] = activations[l][i] <= 0 ? 0 : previous[i];
    std::swap(gradient, previous);
  }
}

// ---------------------------------------------------------------- actions and values

// Actions of an actor on a batch, and what their gradient needs.
struct ActorOutput {
  std::vector<float> action;     // [B, A]
  std::vector<float> deviation;  // [B, A]: standard deviation times noise, of a stochastic actor
  std::vector<float> log_prob;   // [B], of a stochastic actor
  std::vector<char> unclipped;   // [B, A]: the log standard deviation is within its bounds
};

// Intermediate results, kept so that the next update reuses the memory. `activations` and `output` of this state are
// computed with the critics' half if the actor's half follows; otherwise they belong to an older batch.
struct Workspace {
  std::vector<Activations> next_activations, activations;  // [P]: of the actor, in the next state and in this one
  std::vector<ActorOutput> next_output, output;            // [P]
  std::vector<Activations> values;                         // [P * M]: of the critics
  std::vector<std::vector<float>> input_gradient;          // [P * M]: of the values by the critics' inputs
};

extern "C" Workspace* actor_critic_workspace_new() { return new Workspace; }
extern "C" void actor_critic_workspace_delete(Workspace* workspace) { delete workspace; }

// Bounds of the log standard deviation as in Stable-Baselines3.
constexpr float MIN_LOG_STD = -20, MAX_LOG_STD = 2;
constexpr float HALF_LOG_2PI = 0.91893853320467274f, LOG_2 = 0.69314718055994531f;

// A sample of the squashed Gaussian and its log-density. heads [B, 2 A]: means, then log standard deviations.
static void sample_squashed(const Update& u, const std::vector<float>& heads, const float* noise, ActorOutput& out) {
  const int64_t a = u.actions;
  out.action.resize(u.batch * a), out.deviation.resize(u.batch * a), out.unclipped.resize(u.batch * a);
  out.log_prob.resize(u.batch);
  for (int64_t i = 0; i < u.batch; i++) {
    float sum = 0;
    for (int64_t j = 0; j < a; j++) {
      const float mean = heads[i * 2 * a + j], log_std = heads[i * 2 * a + a + j], e = noise[i * a + j];
      const float bounded = log_std < MIN_LOG_STD ? MIN_LOG_STD : log_std > MAX_LOG_STD ? MAX_LOG_STD : log_std;
      const float deviation = std::exp(bounded) * e, x = mean + deviation;
      const float softplus = -2 * x > 20 ? -2 * x : std::log1p(std::exp(-2 * x));
      out.action[i * a + j] = std::tanh(x), out.deviation[i * a + j] = deviation;
      out.unclipped[i * a + j] = bounded == log_std;
      sum += 0.5f * e * e + bounded - 2 * (x + softplus);
    }
    out.log_prob[i] = -sum - (HALF_LOG_2PI + 2 * LOG_2) * a;
  }
}

// tanh of the heads; with noise, that is clipped to +-noise_clip, added, and the sum clipped to [-1, 1] (NaN stays).
static void deterministic_action(const std::vector<float>& heads, const float* noise, float scale, float noise_clip,
                                 ActorOutput& out) {
  out.action.resize(heads.size());
  for (size_t i = 0; i < heads.size(); i++) {
    float action = std::tanh(heads[i]);
    if (noise) {
      const float added = noise[i] * scale;
      action += added < -noise_clip ? -noise_clip : added > noise_clip ? noise_clip : added;
      action = action < -1 ? -1 : action > 1 ? 1 : action;
    }
    out.action[i] = action;
  }
}

// Inputs of a critic: rows of the observation [B, obs_size] followed by the action [B, A].
static void join_inputs(const Update& u, const float* obs, const float* action, Activations& activations) {
  activations.resize(u.critic.layers + 1);
  activations[0].resize(u.batch * (u.obs_size + u.actions));
  for (int64_t i = 0; i < u.batch; i++) {
    float* to = activations[0].data() + i * (u.obs_size + u.actions);
    to = std::copy(obs + i * u.obs_size, obs + (i + 1) * u.obs_size, to);
    std::copy(action + i * u.actions, action + (i + 1) * u.actions, to);
  }
}

// The actor of member p in the next state (by the target actor) or in this one.
static void run_actor(const Update& u, int64_t p, bool next, Activations& activations, ActorOutput& output) {
  const int64_t size = u.batch * u.obs_size, noise_size = u.batch * u.actions;
  const float *obs = (next ? u.next_obs : u.obs) + p * size, *actors = next ? u.target_actors : u.actors;
  activations.resize(u.actor.layers + 1);
  activations[0].assign(obs, obs + size);
  forward(u.actor, actors + p * u.actor.parameters, activations, u.batch);
  if (u.stochastic)
    sample_squashed(u, activations.back(), u.noise + (2 * p + !next) * noise_size, output);
  else if (next && u.smoothed)
    deterministic_action(activations.back(), u.noise + p * noise_size, u.target_noise[p], u.noise_clip[p], output);
  else
    deterministic_action(activations.back(), nullptr, 0, 0, output);
}

// The ensemble's value of transition i of member p under a rule; NaN of any critic stays.
static float ensemble_value(const Update& u, int64_t rule, const std::vector<Activations>& values, int64_t p,
                            int64_t i) {
  const auto value_of = [&](int64_t k) {
    const int64_t m = rule == SUBSET ? u.subset[p * u.subset_size + k] : k;
    return values[p * u.critics + m].back()[i];
  };
  const int64_t count = rule == SUBSET ? u.subset_size : rule == FIRST ? 1 : u.critics;
  float out = value_of(0);
  for (int64_t k = 1; k < count; k++) {
    const float value = value_of(k);
    out = rule == MEAN ? out + value : value < out || value != value ? value : out;
  }
  return rule == MEAN ? out / count : out;
}

// Whether critics are shared among threads: those of several members always, those of one only if they are large.
static bool is_worth_sharing(const Update& u) {
  return u.members > 1 || (u.critics > 1 && u.batch * u.critic.parameters > MIN_SHARED_PRODUCT / 2);
}

// ---------------------------------------------------------------- the two halves of an update

extern "C" void update_critics(const Update* update) {
  const Update& u = *update;
  const int64_t P = u.members, M = u.critics, B = u.batch;
  const bool shared = is_worth_sharing(u);
  Workspace& w = *u.workspace;
  w.next_activations.resize(P), w.activations.resize(P), w.next_output.resize(P), w.output.resize(P);
  w.values.resize(P * M);
#pragma omp parallel for if (shared)
  for (int64_t r = 0; r < 2 * P;
       r++) {  // the actor does not change before its own half, so it runs on both states here
    const FlushDenormals flush;
    const int64_t p = r / 2;
    if (r % 2 == 0)
      run_actor(u, p, true, w.next_activations[p], w.next_output[p]);
    else if (u.updates_actor)
      run_actor(u, p, false, w.activations[p], w.output[p]);
  }
#pragma omp parallel for if (shared)
  for (int64_t r = 0; r < P * M; r++) {
    const FlushDenormals flush;
    const int64_t p = r / M;
    join_inputs(u, u.next_obs + p * B * u.obs_size, w.next_output[p].action.data(), w.values[r]);
    forward(u.critic, u.target_values + r * u.critic.parameters, w.values[r], B);
  }
  std::vector<float> target(P * B);
  for (int64_t p = 0; p < P; p++)
    for (int64_t i = 0; i < B; i++) {
      float next_value = ensemble_value(u, u.target_rule, w.values, p, i);
      if (u.stochastic) next_value -= u.temperature[p] * w.next_output[p].log_prob[i];
      target[p * B + i] = u.reward[p * B + i] + u.discount[p] * u.not_done[p * B + i] * next_value;
    }
#pragma omp parallel for if (shared)
  for (int64_t r = 0; r < P * M; r++) {
    const FlushDenormals flush;
    const int64_t p = r / M;
    Activations& activations = w.values[r];
    join_inputs(u, u.obs + p * B * u.obs_size, u.action + p * B * u.actions, activations);
    const float* params = u.values + r * u.critic.parameters;
    forward(u.critic, params, activations, B);
    std::vector<float> gradient(B);
    double loss = 0, value = 0;
    for (int64_t i = 0; i < B; i++) {
      const float error = activations.back()[i] - target[p * B + i];
      gradient[i] = 2 * error / B, loss += double(error) * error, value += activations.back()[i];
    }
    u.metrics[r] = loss / B, u.metrics[P * M + r] = value / B;
    backward(u.critic, params, activations, gradient, u.gradient + r * u.critic.parameters, B, false);
  }
}

// Gradient of the actor's objective by the inputs of critic r, zero in transitions that do not use this critic's value.
static void objective_gradient(const Update& u, int64_t r, const std::vector<Activations>& values,
                               std::vector<float>& input_gradient) {
  const int64_t M = u.critics, B = u.batch, p = r / M, width = u.obs_size + u.actions;
  input_gradient.assign(B * width, 0);
  std::vector<int64_t> used;  // transitions
  std::vector<float> gradient;
  for (int64_t i = 0; i < B; i++) {
    float share = u.actor_rule == MEAN ? 1.f / M : 1.f;
    if (u.actor_rule == MIN) {  // critics that tie for the minimum share its gradient, as in torch.amin
      const float lowest = ensemble_value(u, MIN, values, p, i);
      if (values[r].back()[i] > lowest) continue;
      int64_t ties = 0;
      for (int64_t m = 0; m < M; m++) ties += values[p * M + m].back()[i] == lowest;
      share = 1.f / std::max<int64_t>(ties, 1);
    }
    used.push_back(i), gradient.push_back(-share / B);
  }
  Activations used_activations;
  const bool all_used = int64_t(used.size()) == B;
  if (!all_used) used_activations.resize(u.critic.layers + 1);
  for (int64_t l = 1; l < u.critic.layers && !all_used; l++) {
    const int64_t wide = u.critic.width[l];
    const std::vector<float>& from = values[r][l];
    for (const int64_t i : used)
      used_activations[l].insert(used_activations[l].end(), from.begin() + i * wide, from.begin() + (i + 1) * wide);
  }
  backward(u.critic, u.values + r * u.critic.parameters, all_used ? values[r] : used_activations, gradient, nullptr,
           used.size(), true);
  for (size_t i = 0; i < used.size(); i++)
    std::copy(gradient.begin() + i * width, gradient.begin() + (i + 1) * width,
              input_gradient.begin() + used[i] * width);
}

extern "C" void update_actor(const Update* update) {
  const Update& u = *update;
  const int64_t P = u.members, M = u.critics, B = u.batch, A = u.actions, width = u.obs_size + A;
  const int64_t used_critics = u.actor_rule == FIRST ? 1 : M;  // of each member
  const bool shared = is_worth_sharing(u);
  Workspace& w = *u.workspace;
  w.input_gradient.resize(P * M);
#pragma omp parallel for if (shared)
  for (int64_t k = 0; k < P * used_critics; k++) {
    const FlushDenormals flush;
    const int64_t p = k / used_critics, r = p * M + k % used_critics;
    join_inputs(u, u.obs + p * B * u.obs_size, w.output[p].action.data(), w.values[r]);
    forward(u.critic, u.values + r * u.critic.parameters, w.values[r], B);
  }
#pragma omp parallel for if (shared)
  for (int64_t k = 0; k < P * used_critics; k++) {
    const FlushDenormals flush;
    const int64_t r = k / used_critics * M + k % used_critics;
    objective_gradient(u, r, w.values, w.input_gradient[r]);
  }
#pragma omp parallel for if (P > 1)
  for (int64_t p = 0; p < P; p++) {
    const FlushDenormals flush;
    const ActorOutput& output = w.output[p];
    const int64_t heads = u.stochastic ? 2 * A : A;
    std::vector<float> gradient(B * heads);
    const float temperature = u.stochastic ? u.temperature[p] : 0, by_log_prob = temperature / B;
    double loss = 0, log_prob = 0;
    for (int64_t i = 0; i < B; i++) {
      loss -= ensemble_value(u, u.actor_rule, w.values, p, i);
      if (u.stochastic) loss += temperature * output.log_prob[i], log_prob += output.log_prob[i];
      for (int64_t j = 0; j < A; j++) {
        float by_action = 0;
        for (int64_t m = 0; m < used_critics; m++) by_action += w.input_gradient[p * M + m][i * width + u.obs_size + j];
        const float action = output.action[i * A + j];
        const float by_mean = by_action * (1 - action * action) + 2 * by_log_prob * action;
        gradient[i * heads + j] = by_mean;
        if (u.stochastic)
          gradient[i * heads + A + j] =
              output.unclipped[i * A + j] ? by_mean * output.deviation[i * A + j] - by_log_prob : 0;
      }
    }
    u.metrics[p] = loss / B, u.metrics[P + p] = -log_prob / B;
    backward(u.actor, u.actors + p * u.actor.parameters, w.activations[p], gradient,
             u.gradient + p * u.actor.parameters, B, false);
  }
}
