"""Base of the off-policy actor-critics: one actor and M critics for each member, and the critic update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from finrl_pod.rl.algorithms.off_policy import Batch, OffPolicy
from finrl_pod.rl.fused.actor_critic_update import ActorCriticKernel, EnsembleRules, make_actor_critic_kernel
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.observation_adapter import ModelInput, action_scale, repeat
from finrl_pod.rl.networks.off_policy_networks import (
    BoundedActor,
    MlpActor,
    MlpCritic,
    combine_values,
    draw_subsets,
    make_actor_network,
    make_critic,
)
from finrl_pod.rl.networks.policies import PolicySpec, with_start
from finrl_pod.rl.optimisation.train_state import RateFactor
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
        self.critic = make_critic(self.spec)
        # Actions near 0 are proportional to the outputs before the tanh, in units of the scale.
        actors = [self.network.init(generator, self.dtype) for generator in generators]
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
