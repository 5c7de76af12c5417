"""Markets with M agents as VecEnvs, so that every algorithm of the suite trains independent agents on them.

`SeparateAgents` makes each agent a member of the population: M networks. `SharedAgents` makes the agents of a market
environments of one member: one network for all. With `central` the rows end in the market's state, which the critic
alone reads: independent PPO becomes MAPPO (Yu et al. 2022).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from finrl_pod.protocols import MultiAgentVecEnv
from finrl_pod.types import EnvStep, JointObservation, Tensor


class AgentsView(ABC):
    """A MultiAgentVecEnv as a VecEnv. market: the environment; separate: whether every agent has its own network."""

    separate: ClassVar[bool]
    action_kind = "direct"
    actions = 0

    def __init__(self, market: MultiAgentVecEnv, members: int, envs: int, member_ids: tuple[int, ...]) -> None:
        self.market, self.members, self.envs, self.member_ids = market, members, envs, member_ids
        self.action_size, self.device = market.action_size, market.device
        self.observation_size = market.observation_size

    def reset(self, seed: int) -> Tensor:
        """Rows [P', E', S'] of the view."""
        return self.rows(self.market.reset(seed))

    def step(self, action: Tensor) -> EnvStep:
        """Step by actions [P', E', D] of the view."""
        out = self.market.step(self.joint(action))
        over = out.terminated.unsqueeze(2).expand_as(out.reward)
        cut = out.truncated.unsqueeze(2).expand_as(out.reward)
        row, final = self.rows(out.observation), self.rows(out.final_observation)
        return EnvStep(row, self.by_agent(out.reward), self.by_agent(over), self.by_agent(cut), final)

    def rows(self, observation: JointObservation) -> Tensor:
        """Rows [P', E', S'] of a joint observation."""
        return self.by_agent(observation.own)

    @abstractmethod
    def by_agent(self, x: Tensor) -> Tensor:
        """[P, E, M, ...] -> [P', E', ...]."""

    @abstractmethod
    def joint(self, x: Tensor) -> Tensor:
        """[P', E', ...] -> [P, E, M, ...]; the inverse of `by_agent`."""


class SeparateAgents(AgentsView):
    """P' = P M members of E' = E environments: agent m of member p is member p M + m."""

    separate = True

    def __init__(self, market: MultiAgentVecEnv) -> None:
        m = market.agents
        ids = tuple(i * m + agent for i in market.member_ids for agent in range(m))
        super().__init__(market, market.members * m, market.envs, ids)

    def by_agent(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)

    def joint(self, x: Tensor) -> Tensor:
        m = self.market.agents
        return x.reshape(x.shape[0] // m, m, *x.shape[1:]).transpose(1, 2)


class SharedAgents(AgentsView):
    """P' = P members of E' = E M environments: agent m of market e is environment e M + m."""

    separate = False

    def __init__(self, market: MultiAgentVecEnv) -> None:
        super().__init__(market, market.members, market.envs * market.agents, market.member_ids)

    def by_agent(self, x: Tensor) -> Tensor:
        return x.flatten(1, 2)

    def joint(self, x: Tensor) -> Tensor:
        m = self.market.agents
        return x.reshape(x.shape[0], x.shape[1] // m, m, *x.shape[2:])


class _CentralRows(AgentsView):
    """Rows [own observation, state]: the state is for critics only."""

    critic_only: int

    def rows(self, observation: JointObservation) -> Tensor:
        own, state = observation
        wide = state.unsqueeze(2).expand(*own.shape[:3], state.shape[-1])
        return self.by_agent(torch.cat([own, wide], -1))


class CentralSeparateAgents(_CentralRows, SeparateAgents):
    """`SeparateAgents` with a central critic for each agent."""

    def __init__(self, market: MultiAgentVecEnv) -> None:
        super().__init__(market)
        self.critic_only = market.state_size
        self.observation_size += market.state_size


class CentralSharedAgents(_CentralRows, SharedAgents):
    """`SharedAgents` with a central critic."""

    def __init__(self, market: MultiAgentVecEnv) -> None:
        super().__init__(market)
        self.critic_only = market.state_size
        self.observation_size += market.state_size


def make_view(market: MultiAgentVecEnv, *, shared: bool, central: bool) -> AgentsView:
    """The view for shared or separate weights, with or without a central critic."""
    if shared:
        return CentralSharedAgents(market) if central else SharedAgents(market)
    return CentralSeparateAgents(market) if central else SeparateAgents(market)
