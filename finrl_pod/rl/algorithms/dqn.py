"""Deep Q-learning (Mnih et al. 2015), double (van Hasselt et al. 2016), dueling (Wang et al. 2016), and both (D3QN)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from finrl_pod.rl.algorithms.off_policy import Batch, OffPolicy
from finrl_pod.rl.networks.inputs import ModelInput
from finrl_pod.rl.networks.off_policy_networks import GreedyActor, make_q_network
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.optimisation.optimiser import RateFactor
from finrl_pod.settings.algorithm_configs import DQNConfig
from finrl_pod.types import Tensor


class DQN(OffPolicy):
    """Each update fits Q with a Huber loss to r + gamma max_a Q'(s', a)."""

    config: DQNConfig
    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = (*OffPolicy.MEMBER_SETTINGS, "final_epsilon")
    METRICS = (*OffPolicy.METRICS, "epsilon")
    DUELING = False
    acting_part = "values"

    def _build(self, generators: Sequence[torch.Generator]) -> None:
        self.action_shape = ()
        self.action_dtype = torch.int64
        self.network = make_q_network(self.spec, dueling=self.DUELING)
        self.train_state.add("values", [self.network.init(s, self.dtype) for s in generators], target=True)

    @classmethod
    def make_actor(cls, spec: PolicySpec) -> GreedyActor:
        return GreedyActor(spec, dueling=cls.DUELING)

    def _greedy_action(self, obs: ModelInput) -> Tensor:
        return self.network.forward(self.weights(), obs).argmax(-1)

    def _random_action(self, groups: int) -> Tensor:
        shape = (groups, self.adapter.accounts)
        return self._noises.integers(self.spec.action_size, shape)

    @property
    def epsilon(self) -> Tensor:
        """Share of random actions [P]; falls linearly from 1 to final_epsilon with the age of the agent."""
        done = (self.ages.to(self.dtype) / max(self.config.exploration_samples, 1)).clamp(max=1.0)
        return 1 + (self.settings["final_epsilon"] - 1) * done

    def _sample_action(self, items: Mapping[str, Tensor]) -> Tensor:
        best = self._greedy_action(self.adapter.decode(items))
        random = self._random_action(best.shape[1])
        uniform = self._noises.uniform(tuple(best.shape[1:]), self.dtype)
        return torch.where(uniform < self.epsilon.view(-1, 1, 1), random, best)

    def _to_env(self, action: Tensor) -> Tensor:
        return action.reshape(self.members, -1, 1)

    def next_values(self, obs: ModelInput) -> Tensor:
        """Value of the best next action by the target network: [P, K, A]."""
        return self.network.forward(self.train_state.targets["values"].views, obs).amax(-1)

    def _update(self, batch: Batch, noise: Tensor, factor: RateFactor) -> list[Tensor]:  # noqa: ARG002
        gamma = self.settings["gamma"].view(-1, 1, 1)
        with torch.no_grad():
            target = batch.reward + gamma * batch.not_done * self.next_values(batch.next_obs)
        values = self.network.forward(self.train_state.views("values"), batch.obs)
        action_values = values.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        loss = torch.nn.functional.smooth_l1_loss(action_values, target, reduction="none").mean((1, 2))  # [P]
        norm = self.train_state.gradient_step("values", loss, factor)
        self._update_targets(self.updates)
        return [loss.detach(), action_values.detach().mean((1, 2)), norm, self.epsilon]


class DoubleDQN(DQN):
    """Double DQN: the network selects the next action, the target network values it, against over-estimation."""

    def next_values(self, obs: ModelInput) -> Tensor:
        best = self._greedy_action(obs).unsqueeze(-1)
        return self.network.forward(self.train_state.targets["values"].views, obs).gather(-1, best).squeeze(-1)


class DuelingDQN(DQN):
    """DQN with a dueling head (`finrl_pod.rl.networks.off_policy_networks.dueling_values`)."""

    DUELING = True


class D3QN(DoubleDQN):
    """Double DQN with a dueling head."""

    DUELING = True
