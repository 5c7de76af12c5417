"""Training the agents of a market by one of the multi-agent algorithms, behind one interface.

- ippo: independent PPO; the critic of each agent reads its own observation.
- mappo: PPO with a central critic on the state of the market (Yu et al. 2022).
- maddpg: deterministic actors with central critics on the state and all actions (Lowe et al. 2017).
- league: independent PPO against past champions of all seats (`league.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from finrl_pod.errors import ConfigError
from finrl_pod.protocols import MultiAgentVecEnv
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.multi_agent.league import League
from finrl_pod.rl.multi_agent.maddpg import MADDPG
from finrl_pod.rl.multi_agent.views import AgentsView
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.multi_agent import MADDPGConfig
from finrl_pod.types import JointObservation, Tensor

MULTI_AGENT_ALGORITHMS = ("ippo", "mappo", "maddpg", "league")
Progress = Callable[[int, Metrics], None]


class JointPolicy(Protocol):
    """Decisions of all agents of a market."""

    def act(self, observation: JointObservation) -> Tensor:
        """Actions [P, E, M, D] without exploration, for any number E of markets."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """Weights of all actors: name -> [networks, ...]."""
        ...


class LearnerPolicy:
    """The agents of a learner on a view. learner: trained PPO, view: of the market that it was trained on."""

    def __init__(self, learner: Learner, view: AgentsView) -> None:
        self.learner = learner
        self.view = view

    def act(self, observation: JointObservation) -> Tensor:
        return self.view.joint(self.learner.act(self.view.rows(observation)))

    def weights(self) -> dict[str, Tensor]:
        return self.learner.algorithm.weights()


def train_agents(
    market: MultiAgentVecEnv,
    algorithm: str,
    config: PPOConfig | MADDPGConfig | None = None,
    *,
    samples: int,
    shared: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> JointPolicy:
    """Train all agents on `samples` steps of the markets of each member. shared: one network for all agents.

    A league takes a market with one member for each agent, and trains one joint policy.

    config: PPOConfig or MADDPGConfig; default: the defaults of the algorithm. progress(samples, metrics) is called
    after every iteration. Raises ConfigError for an unknown algorithm and settings that do not fit.
    """
    if algorithm not in MULTI_AGENT_ALGORITHMS:
        raise ConfigError(f"--algorithm must be one of {', '.join(MULTI_AGENT_ALGORITHMS)}, got {algorithm!r}")
    report = progress or (lambda *_: None)
    if algorithm == "maddpg":
        if config is not None and not isinstance(config, MADDPGConfig):
            raise ConfigError(f"maddpg takes a MADDPGConfig, got {type(config).__name__}")
        joint = MADDPG(market, config, shared=shared, seed=seed)
        joint.learn(samples, lambda agent, metrics: report(agent.samples, metrics))
        return joint
    if isinstance(config, MADDPGConfig):
        raise ConfigError(f"{algorithm} takes a PPOConfig, got {type(config).__name__}")
    if algorithm == "league":
        league = League(market, config or default_ppo(), seed=seed)
        league.learn(samples, lambda learner, metrics: report(learner.samples[0], metrics))
        return league
    view = AgentsView(market, shared=shared, central=algorithm == "mappo")
    learner = Learner(view, config or default_ppo(), seed=seed)
    each = market.agents if shared else 1  # samples of the learner in a step of a market
    learner.learn(samples * each, callback=lambda learner, metrics: report(learner.samples[0] // each, metrics))
    return LearnerPolicy(learner, view)


def default_ppo(**changes: Any) -> PPOConfig:
    """Settings of PPO that suit episodes of some ten steps with costs alone."""
    config = PPOConfig(
        policy="mlp", hidden=(32, 32), horizon=20, gamma=1.0, gae_lambda=0.95, log_std_init=-1.5, epochs=4
    )
    return dataclasses.replace(config, **changes)
