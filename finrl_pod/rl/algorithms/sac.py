"""Soft actor-critic (Haarnoja et al. 2018) and REDQ, randomised ensembled double Q-learning (Chen et al. 2021).

The target of REDQ is the minimum over a random subset of the critics, resampled at every update; its actor maximises
the mean of all critics, once every `policy_delay` updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from finrl_pod.rl.algorithms.actor_critic import ActorCritic
from finrl_pod.rl.algorithms.off_policy import Batch, OffPolicy
from finrl_pod.rl.networks.distributions import HALF_LOG_2PI, valid_scores
from finrl_pod.rl.networks.observation_adapter import ModelInput
from finrl_pod.rl.networks.off_policy_networks import combine_values
from finrl_pod.rl.optimisation.train_state import RateFactor
from finrl_pod.types import Tensor

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
