"""Markets with M agents as VecEnvs, so that every algorithm of the suite trains independent agents on them.

With separate weights each agent is a member of the population: M networks, and agent m of member p is member p M + m.
With shared weights the agents of a market are environments of one member: agent m of market e is environment e M + m.
With a central critic the rows end in the state of the market, for the critic alone: independent PPO becomes
MAPPO (Yu et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from finrl_pod.protocols import MultiAgentVecEnv, ResumableMultiAgentVecEnv
from finrl_pod.types import EnvStep, JointObservation, Tensor


class AgentsView:
    """A MultiAgentVecEnv as a `JointVecEnv` of P' members and E' environments each.

    critic_only: numbers of the state.
    """

    def __init__(self, market: MultiAgentVecEnv, *, shared: bool, central: bool) -> None:
        """shared: one network for all agents. central: critics read the state of the market."""
        self.market = market
        self.is_shared = shared
        self.agents = m = market.agents
        self.members = market.members if shared else market.members * m
        self.envs = market.envs * m if shared else market.envs
        separate_ids = (i * m + agent for i in market.member_ids for agent in range(m))
        self.member_ids = market.member_ids if shared else tuple(separate_ids)
        self.device = market.device
        self.action_size = market.action_size
        self.action_kind = market.action_kind
        self.actions = market.actions
        self.critic_only = market.state_size if central else 0
        self.observation_size = market.observation_size + self.critic_only

    def reset(self, seed: int) -> Tensor:
        """Rows [P', E', S'] of the view."""
        return self.rows(self.market.reset(seed))

    def step(self, action: Tensor) -> EnvStep:
        """Step by actions [P', E', D] of the view."""
        out = self.market.step(self.joint(action))
        return EnvStep(
            self.rows(out.observation),
            self.by_agent(out.reward),
            self.by_agent(out.terminated),
            self.by_agent(out.truncated),
            self.rows(out.final_observation),
            idle=self.by_agent(out.idle) if out.idle.dim() else out.idle,
        )

    def rows(self, observation: JointObservation) -> Tensor:
        """Rows [P', E', S'] of a joint observation."""
        own, state = observation
        if self.critic_only:
            own = torch.cat([own, state.unsqueeze(2).expand(*own.shape[:3], state.shape[-1])], -1)
        return self.by_agent(own)

    def by_agent(self, x: Tensor) -> Tensor:
        """[P, E, M, ...] -> [P', E', ...]."""
        return x.flatten(1, 2) if self.is_shared else x.transpose(1, 2).flatten(0, 1)

    def joint(self, x: Tensor) -> Tensor:
        """[P', E', ...] -> [P, E, M, ...]; the inverse of `by_agent`."""
        m = self.market.agents
        if self.is_shared:
            return x.reshape(x.shape[0], x.shape[1] // m, m, *x.shape[2:])
        return x.reshape(x.shape[0] // m, m, *x.shape[1:]).transpose(1, 2)

    @property
    def worker_restarts(self) -> int:
        """Workers of the market replaced so far."""
        return getattr(self.market, "worker_restarts", 0)

    def close(self) -> None:
        """Close the market, if it can be."""
        close = getattr(self.market, "close", None)
        if callable(close):
            close()


class ResumableAgentsView(AgentsView):
    """An `AgentsView` of a market with checkpoint() and resume()."""

    market: ResumableMultiAgentVecEnv

    def checkpoint(self) -> Mapping[str, Tensor]:
        """State of the market."""
        return self.market.checkpoint()

    def resume(self, state: Mapping[str, Tensor]) -> Tensor:
        """Restore a checkpoint; returns the current rows."""
        return self.rows(self.market.resume(state))


def view_agents(market: MultiAgentVecEnv, *, shared: bool, central: bool) -> AgentsView:
    """The view of a market; it can be continued exactly if the market can."""
    kind = ResumableAgentsView if isinstance(market, ResumableMultiAgentVecEnv) else AgentsView
    return kind(market, shared=shared, central=central)
