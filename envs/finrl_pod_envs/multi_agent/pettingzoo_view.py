"""Parallel interface of PettingZoo to one market with many agents; needs the package `pettingzoo`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from finrl_pod.errors import ConfigError
from finrl_pod.protocols import MultiAgentVecEnv

Row = NDArray[np.float32]


class ParallelMarket(ParallelEnv):  # type: ignore[misc]  # pettingzoo has no complete types
    """One market (P = E = 1) as a ParallelEnv: agents "agent_0", "agent_1", ...; actions in [-1, 1].

    The end of an episode is a termination for all agents; `reset` starts the next. `state()` is the market state.
    """

    metadata = {"name": "finrl_pod_market_v0", "render_modes": [], "is_parallelizable": True}  # noqa: RUF012
    render_mode = None

    def __init__(self, market: MultiAgentVecEnv) -> None:
        """Raises ConfigError for more than one member or environment."""
        if (market.members, market.envs) != (1, 1):
            raise ConfigError(
                f"a PettingZoo view shows one market, got {market.members} x {market.envs}; make it with envs=1"
            )
        self.market = market
        self.possible_agents = [f"agent_{i}" for i in range(market.agents)]
        self.agents: list[str] = []
        observation_box = spaces.Box(-np.inf, np.inf, (market.observation_size,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, observation_box)
        # A space draws samples from its generator: each agent needs a separate one.
        self.action_spaces = {
            agent: spaces.Box(-1.0, 1.0, (market.action_size,), np.float32) for agent in self.possible_agents
        }
        self.state_space = spaces.Box(-np.inf, np.inf, (market.state_size,), np.float32)
        self._seed = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self,
        seed: int | None = None,
        options: Any = None,  # noqa: ARG002
    ) -> tuple[dict[str, Row], dict[str, dict[str, float]]]:
        """Start an episode; without a seed, the next one of a fixed sequence."""
        self._seed = self._seed + 1 if seed is None else seed
        observation = self.market.reset(self._seed)
        self.agents = list(self.possible_agents)
        self._state = observation.state[0, 0].float().cpu().numpy()
        return self._rows(observation.own), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Row]
    ) -> tuple[dict[str, Row], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, float]]]:
        """Step by one action for every agent."""
        rows = np.stack([np.asarray(actions[agent], np.float32) for agent in self.possible_agents])
        out = self.market.step(torch.from_numpy(rows).to(self.market.device)[None, None])
        agents = self.agents
        reward, profit = (x[0, 0].double().tolist() for x in (out.reward, out.profit))
        is_terminated = bool(out.terminated)
        is_truncated = bool(out.truncated)
        self._state = out.final_observation.state[0, 0].float().cpu().numpy()
        observations = self._rows(out.final_observation.own)
        if is_terminated or is_truncated:
            self.agents = []
        return (
            observations,
            dict(zip(agents, reward, strict=True)),
            dict.fromkeys(agents, is_terminated),
            dict.fromkeys(agents, is_truncated),
            {agent: {"profit": x} for agent, x in zip(agents, profit, strict=True)},
        )

    def state(self) -> Row:
        """The whole state of the market, for central critics."""
        return self._state

    def close(self) -> None:
        pass

    def _rows(self, observations: torch.Tensor) -> dict[str, Row]:
        rows = observations[0, 0].float().cpu().numpy()
        return {agent: rows[i] for i, agent in enumerate(self.possible_agents)}
