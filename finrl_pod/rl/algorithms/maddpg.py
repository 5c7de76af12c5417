"""MADDPG (Lowe et al. 2017): deterministic actors on own observations, critics on the state and all actions.

DDPG on a `JointVecEnv`, whose critics also read the actions of the M agents of the market. With separate weights the
agents are members of the population, and those of a market draw the same transitions; with shared weights they are the
accounts of an item of the replay buffer.

Shapes: R networks, K items of A accounts, D numbers of an action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch

from finrl_pod.rl.algorithms.actor_critic import DDPG
from finrl_pod.rl.algorithms.off_policy import Batch
from finrl_pod.rl.networks.inputs import FlatAdapter, ModelInput, repeat
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.off_policy_networks import Critic, make_critic
from finrl_pod.types import Tensor

FIRST_SCALE = 0.01  # of the last layer of new actors, which then act close to 0


class MADDPG(DDPG):
    """DDPG of the agents of markets. Each critic reads the state, own observation and action, and all actions."""

    def _build(self, generators: Sequence[torch.Generator]) -> None:
        assert isinstance(self.adapter, FlatAdapter)
        self.agents = self.adapter.agents
        super()._build(generators)

    def _first_actor(self, generator: torch.Generator) -> Params:
        last = len(self.spec.hidden)
        tensors = super()._first_actor(generator)
        return {name: x * FIRST_SCALE if name in (f"w{last}", f"b{last}") else x for name, x in tensors.items()}

    def _make_critic(self) -> Critic:
        # The own action apart from all actions: one critic can then serve all agents.
        return make_critic(replace(self.spec, action_size=self.spec.action_size * (1 + self.agents)))

    def _indices(self, count: int) -> Tensor:
        indices = super()._indices(count)
        if self.adapter.accounts > 1:
            return indices
        return indices[:, :: self.agents].repeat_interleave(self.agents, 1)

    def values(self, params: Params, obs: ModelInput, action: Tensor, critics: int) -> Tensor:
        return self._joint_values(params, obs, action, self._joint(action), critics)

    def _actor_values(self, params: Params, batch: Batch, action: Tensor) -> Tensor:
        # An agent moves up its critic by its own action; the other actions come from the batch.
        joint = torch.where(self._own_places, action.unsqueeze(3), self._joint(batch.action))
        return self._joint_values(params, batch.obs, action, joint, 1)

    def _joint_values(self, params: Params, obs: ModelInput, action: Tensor, joint: Tensor, critics: int) -> Tensor:
        """Values [R, critics, K, A] of own actions [R, K, A, D] beside all actions of the market [R, K, A, M, D]."""
        effect = repeat(torch.cat([action, joint.flatten(3)], -1), critics)
        out = self.critic.forward(params, obs.copies(critics), effect)
        return out.view(self.members, critics, *out.shape[1:])

    def _joint(self, action: Tensor) -> Tensor:
        """All actions of the market of each agent: [R, K, A, D] -> [R, K, A, M, D]."""
        r, k, a, d = action.shape
        m = self.agents
        if a > 1:
            return action.unsqueeze(2).expand(r, k, a, m, d)
        by_market = action.view(r // m, m, k, d).transpose(1, 2)  # [P, K, M, D]
        return by_market.unsqueeze(1).expand(r // m, m, k, m, d).reshape(r, k, 1, m, d)

    @cached_property
    def _own_places(self) -> Tensor:
        """Which of all actions is that of the agent itself: [R, 1, A, M, 1] bool."""
        own = torch.eye(self.agents, dtype=torch.bool, device=self.device)
        if self.adapter.accounts > 1:
            return own.view(1, 1, self.agents, self.agents, 1)
        return own.repeat(self.members // self.agents, 1).view(self.members, 1, 1, self.agents, 1)
