"""Off-policy actor-critics, one actor and M critics for each member.

DDPG (Lillicrap et al. 2016), TD3 (Fujimoto et al. 2018), soft actor-critic (Haarnoja et al. 2018) and REDQ, randomised
ensembled double Q-learning (Chen et al. 2021).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from finrl_pod.rl.algorithms.off_policy import Batch, OffPolicy
from finrl_pod.rl.fused.kernels import ActorCriticKernel, EnsembleRules, make_actor_critic_kernel
from finrl_pod.rl.networks.distributions import HALF_LOG_2PI, valid_scores
from finrl_pod.rl.networks.inputs import ModelInput, action_scale, repeat
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.off_policy_networks import (
    BoundedActor,
    Critic,
    MlpActor,
    MlpCritic,
    combine_values,
    draw_subsets,
    make_actor_network,
    make_critic,
)
from finrl_pod.rl.networks.policies import PolicySpec, with_start
from finrl_pod.rl.optimisation.optimiser import RateFactor
from finrl_pod.settings.algorithm_configs import ActorCriticConfig
from finrl_pod.types import Tensor


class ActorCritic(OffPolicy):
    """Off-policy actor-critic with actions in [-1, 1]^D.

    OUTPUTS_PER_ACTION: outputs of the actor, 1 for an action, 2 for a Gaussian before the tanh. KERNEL: whether the
    native kernel implements exactly this class; not inherited, because a subclass may differ.
    """

    OUTPUTS_PER_ACTION = 1
    KERNEL = False
    ACTOR_TARGET = False
    config: ActorCriticConfig

    def _build(self, generators: Sequence[torch.Generator]) -> None:
        self.action_shape = (self.spec.action_size,)
        self.action_dtype = self.dtype
        self.critics = self.config.critics
        self.rule = self.config.critic_rule
        self.subset = self.config.critic_subset
        self.delay: int = getattr(self.config, "policy_delay", 1)  # critic updates for each actor update
        self.network = make_actor_network(self.spec, self.OUTPUTS_PER_ACTION)
        self.critic = self._make_critic()
        # Actions near 0 are proportional to the outputs before the tanh, in units of the scale.
        actors = [self._first_actor(generator) for generator in generators]
        actors_from_start = with_start(actors, self.start, action_scale(self.spec.action))
        self.train_state.add("actor", actors_from_start, target=self.ACTOR_TARGET)
        rows = [self.critic.init(s, self.dtype) for s in generators for _ in range(self.critics)]
        self.train_state.add("critic", rows, per=self.critics, target=True)
        # Metrics of the last actor update; the actor may be updated less often than the critics.
        self.actor_metrics = [torch.full_like(self.reward_scale, torch.nan)] * (
            len(self.METRICS) - len(OffPolicy.METRICS)
        )
        self._critic_weights = self.train_state.detached("critic")
        self._kernel = self._make_kernel()

    def _first_actor(self, generator: torch.Generator) -> Params:
        """Initial weights of the actor of a member."""
        return self.network.init(generator, self.dtype)

    def _make_critic(self) -> Critic:
        return make_critic(self.spec)

    def _make_kernel(self) -> ActorCriticKernel | None:
        """The native kernel for this update, or None if autograd has to compute it."""
        is_plain = isinstance(self.network, MlpActor) and isinstance(self.critic, MlpCritic) and not self.spec.assets
        if not is_plain or not vars(type(self)).get("KERNEL", False):
            return None
        rules = EnsembleRules(self.rule, self.actor_rule, self.subset, self.OUTPUTS_PER_ACTION == 2)
        return make_actor_critic_kernel(self.train_state, self.spec, rules, self.settings, self.items)

    @classmethod
    def make_actor(cls, spec: PolicySpec) -> BoundedActor:
        return BoundedActor(spec, cls.OUTPUTS_PER_ACTION)

    def _greedy_action(self, obs: ModelInput) -> Tensor:
        return torch.tanh(self.network.forward(self.weights(), obs)[0])

    def _random_action(self, groups: int) -> Tensor:
        shape = (groups, self.adapter.accounts, self.spec.action_size)
        return self._noises.uniform(shape, self.dtype) * 2 - 1

    def _noise(self, groups: int) -> Tensor:
        shape = (groups, self.adapter.accounts, self.spec.action_size)
        return self._noises.normal(shape, self.dtype)

    def _to_env(self, action: Tensor) -> Tensor:
        return action.reshape(self.members, -1, self.spec.action_size) * action_scale(self.spec.action)

    @property
    @abstractmethod
    def actor_rule(self) -> str:
        """Which value the actor maximises: the "min" or "mean" of the critics, or the "first"."""

    @property
    def updates_actor(self) -> bool:
        """Whether this update includes the actor."""
        return self.updates % self.delay == 0

    def values(self, params: Params, obs: ModelInput, action: Tensor, critics: int) -> Tensor:
        """Values [P, M, K, A] of actions [P, K, A, D] by each of M critics."""
        effect = repeat(self.adapter.effect(action, obs), critics)
        out = self.critic.forward(params, obs.copies(critics), effect)
        return out.view(self.members, critics, *out.shape[1:])

    def next_values(self, obs: ModelInput, action: Tensor) -> Tensor:
        """Values of the next actions by the target critics, combined by the rule of the ensemble: [P, K, A]."""
        values = self.values(self.train_state.targets["critic"].views, obs, action, self.critics)
        return combine_values(values, self.rule, self._subset() if self.rule == "subset" else None)

    def _subset(self) -> Tensor:
        return draw_subsets(self._update_noises, self.critics, self.subset)

    def _update_critics(self, batch: Batch, next_values: Tensor, factor: RateFactor) -> list[Tensor]:
        """One gradient step of all critics towards reward + gamma * next values [P, K, A]; returns the metrics."""
        gamma = self.settings["gamma"].view(-1, 1, 1)
        target = batch.reward + gamma * batch.not_done * next_values
        values = self.values(self.train_state.views("critic"), batch.obs, batch.action, self.critics)
        loss = (values - target.unsqueeze(1)).square().mean((2, 3))  # [P, M]
        norm = self.train_state.gradient_step("critic", loss.view(-1), factor)
        return [loss.detach().mean(1), values.detach().mean((1, 2, 3)), norm]

    def _update_critics_native(
        self,
        kernel: ActorCriticKernel,
        batch: Batch,
        noise: Tensor,
        factor: RateFactor,
        temperature: Tensor | None = None,
    ) -> list[Tensor]:
        """`_update_critics` by the native kernel; it also computes the next values."""
        subset = self._subset() if self.rule == "subset" else None
        transitions = (batch.obs.account, batch.action, batch.reward, batch.not_done, batch.next_obs.account)
        gradient, losses, values = kernel.critics(
            transitions, noise, updates_actor=self.updates_actor, temperature=temperature, subset=subset
        )
        norm = self.train_state.apply_gradient("critic", gradient, losses, factor)
        each = (self.members, self.critics)
        return [losses.view(each).mean(1), values.view(each).mean(1), norm]


class DDPG(ActorCritic):
    """Each update fits the critics to r + gamma Q'(s', mu'(s')), then moves the actor up the first critic."""

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = (*OffPolicy.MEMBER_SETTINGS, "exploration_noise")
    METRICS = (*OffPolicy.METRICS, "actor_loss")
    ACTOR_TARGET = True
    KERNEL = True
    actor_rule = "first"

    def _sample_action(self, items: Mapping[str, Tensor]) -> Tensor:
        action = self._action(self.weights(), self.adapter.decode(items))
        std = self.settings["exploration_noise"].view(-1, 1, 1, 1)
        return (action + std * self._noise(action.shape[1])).clamp(-1, 1)

    def _action(self, params: Params, obs: ModelInput) -> Tensor:
        return torch.tanh(self.network.forward(params, obs)[0])

    def next_action(self, obs: ModelInput, noise: Tensor) -> Tensor:  # noqa: ARG002  used by TD3
        """Action of the target actor in the next state: [P, K, A, D]."""
        return self._action(self.train_state.targets["actor"].views, obs)

    def _update(self, batch: Batch, noise: Tensor, factor: RateFactor) -> list[Tensor]:
        if self._kernel is not None:
            metrics = self._update_critics_native(self._kernel, batch, noise, factor)
        else:
            with torch.no_grad():
                next_values = self.next_values(batch.next_obs, self.next_action(batch.next_obs, noise))
            metrics = self._update_critics(batch, next_values, factor)
        if self.updates_actor:
            self.actor_metrics = [self._update_actor(batch, factor)]
            self._update_targets(self.updates // self.delay)
        return [*metrics, *self.actor_metrics]

    def _update_actor(self, batch: Batch, factor: RateFactor) -> Tensor:
        """One gradient step of the actor; returns its loss [P]."""
        if self._kernel is not None:
            gradient, loss, _ = self._kernel.actor()
            self.train_state.apply_gradient("actor", gradient, loss, factor)
            return loss
        action = self._action(self.train_state.views("actor"), batch.obs)
        # The first critic of each member.
        first = {name: view[:: self.critics] for name, view in self._critic_weights.items()}
        loss = -self._actor_values(first, batch, action).mean((1, 2, 3))
        self.train_state.gradient_step("actor", loss, factor)
        return loss.detach()

    def _actor_values(self, params: Params, batch: Batch, action: Tensor) -> Tensor:
        """Values [P, 1, K, A] of the actor's actions [P, K, A, D] by one critic of each member."""
        return self.values(params, batch.obs, action, 1)


class TD3(DDPG):
    """DDPG with target policy smoothing, a critic ensemble, and delayed updates of the actor and the targets."""

    KERNEL = True
    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = (*DDPG.MEMBER_SETTINGS, "target_noise", "noise_clip")

    def _noise_shape(self) -> tuple[int, ...]:
        return (self.items, self.adapter.accounts, self.spec.action_size)

    def next_action(self, obs: ModelInput, noise: Tensor) -> Tensor:
        """Smoothed target action: mu'(s') + clip(noise, +-noise_clip), clipped to [-1, 1]."""
        std, limit = (self.settings[name].view(-1, 1, 1, 1) for name in ("target_noise", "noise_clip"))
        noise = torch.maximum(torch.minimum(noise * std, limit), -limit)
        return (super().next_action(obs, noise) + noise).clamp(-1, 1)


TARGET_ENTROPY = -1.0  # per action dimension
LOG_STD_BOUNDS = (-20.0, 2.0)  # bounds of the logarithm of the standard deviation before the tanh


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Samples tanh(u), u = mean + std noise, [..., D], and their log-density summed over D, [...].

    valid: scores in the density, [..., D] bool, None if all are.

        log pi = log N(u) - sum log(1 - tanh(u)^2),   log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))

    (appendix C of the paper, in a form that does not overflow).
    """
    action, log_prob = _Squashed.apply(mean, log_std, noise, valid)  # type: ignore[no-untyped-call]
    return action, log_prob


class _Squashed(torch.autograd.Function):
    """`squashed` with its closed-form gradient: d log pi / du = 2 tanh(u), du / d log std = std noise."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        clamped_log_std = log_std.clamp(*LOG_STD_BOUNDS)
        deviation = clamped_log_std.exp() * noise
        u = mean + deviation
        action = torch.tanh(u)
        negative_log_probs = 0.5 * noise.square() + clamped_log_std - 2 * (u + torch.nn.functional.softplus(-2 * u))
        ctx.save_for_backward(action, deviation, clamped_log_std == log_std, valid)
        if valid is not None:
            return action, -torch.where(valid, negative_log_probs + (HALF_LOG_2PI + 2 * math.log(2)), 0.0).sum(-1)
        return action, -negative_log_probs.sum(-1) - (HALF_LOG_2PI + 2 * math.log(2)) * mean.shape[-1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None]:
        action, deviation, within_bounds, valid = ctx.saved_tensors
        grad_action = grad_outputs[0]
        grad_log_prob = grad_outputs[1].unsqueeze(-1)
        if valid is not None:
            grad_log_prob = grad_log_prob * valid
        grad_u = grad_action * (1 - action * action) + 2 * grad_log_prob * action
        return grad_u, (grad_u * deviation - grad_log_prob) * within_bounds, None, None


class SAC(ActorCritic):
    """Each update fits the critics to the soft value, moves the actor up them, and adapts the temperature."""

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = (*OffPolicy.MEMBER_SETTINGS, "temperature")
    METRICS = (*OffPolicy.METRICS, "actor_loss", "temperature", "entropy")
    OUTPUTS_PER_ACTION = 2
    KERNEL = True

    def _build(self, generators: Sequence[torch.Generator]) -> None:
        super()._build(generators)
        self.train_state.add("temperature", [{"log": x.log().view(1).cpu()} for x in self.settings["temperature"]])

    @property
    def actor_rule(self) -> str:
        return "mean" if self.rule == "mean" else "min"

    @property
    def temperature(self) -> Tensor:
        """Current temperature [P]."""
        return self.train_state.parts["temperature"].parameters.flat[:, 0].exp()

    def _sample(self, obs: ModelInput, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sampled actions [P, K, A, D] and their log-density [P, K, A]."""
        mean, log_std = self.network.forward(self.train_state.views("actor"), obs)
        return squashed(mean, log_std, noise, valid_scores(obs.tradable, self.spec.action_size))

    def _sample_action(self, items: Mapping[str, Tensor]) -> Tensor:
        obs = self.adapter.decode(items)
        return self._sample(obs, self._noise(obs.account.shape[1]))[0]

    def _noise_shape(self) -> tuple[int, ...]:
        return (2, self.items, self.adapter.accounts, self.spec.action_size)

    def _update(self, batch: Batch, noise: Tensor, factor: RateFactor) -> list[Tensor]:
        temperature = self.temperature
        if self._kernel is not None:
            metrics = self._update_critics_native(self._kernel, batch, noise, factor, temperature)
        else:
            with torch.no_grad():
                next_action, log_prob = self._sample(batch.next_obs, noise[:, 0])
                next_values = self.next_values(batch.next_obs, next_action)
                next_values = next_values - temperature.view(-1, 1, 1) * log_prob
            metrics = self._update_critics(batch, next_values, factor)
        if self.updates_actor:
            loss, entropy = self._update_actor(batch, noise[:, 1], temperature, factor)
            self._update_temperature(entropy, factor, self._scores_per_action(batch.obs))
            self.actor_metrics = [loss, temperature, entropy]
        self._update_targets(self.updates)
        return [*metrics, *self.actor_metrics]

    def _update_actor(
        self, batch: Batch, noise: Tensor, temperature: Tensor, factor: RateFactor
    ) -> tuple[Tensor, Tensor]:
        """One gradient step of the actor; returns its loss and its entropy, [P] each."""
        if self._kernel is not None:
            gradient, loss, entropy = self._kernel.actor()
            self.train_state.apply_gradient("actor", gradient, loss, factor)
            return loss, entropy
        action, log_prob = self._sample(batch.obs, noise)
        values = combine_values(self.values(self._critic_weights, batch.obs, action, self.critics), self.actor_rule)
        loss = (temperature.view(-1, 1, 1) * log_prob - values).mean((1, 2))
        self.train_state.gradient_step("actor", loss, factor)
        return loss.detach(), -log_prob.detach().mean((1, 2))

    def _scores_per_action(self, obs: ModelInput) -> Tensor | int:
        """Scores in the density, D or, where assets come and go, their mean over the items [P]."""
        valid = valid_scores(obs.tradable, self.spec.action_size)
        return self.spec.action_size if valid is None else valid.sum(-1).to(self.dtype).mean((1, 2))

    @torch.no_grad()
    def _update_temperature(self, entropy: Tensor, factor: RateFactor, scores: Tensor | int) -> None:
        """One gradient step of log alpha on J(alpha) = E[-alpha (log pi + target)]. entropy: [P]; scores: mean D."""
        excess = entropy - TARGET_ENTROPY * scores
        log = self.train_state.parts["temperature"].parameters.flat
        # The loss log alpha * excess has the gradient `excess`.
        self.train_state.apply_gradient("temperature", excess.unsqueeze(1), log[:, 0] * excess, factor)


class REDQ(SAC):
    """SAC with many critics. Between two actor updates the metrics of the actor do not change."""

    KERNEL = True
    actor_rule = "mean"
