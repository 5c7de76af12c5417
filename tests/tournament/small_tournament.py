"""A small tournament: three assets, two pods, three generations; takes half a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from finrl_pod_envs.trading_envs import make_env

from finrl_pod.settings.run import AgentConfig, EnvironmentConfig, PPOConfig, RunConfig, TournamentConfig
from finrl_pod.tournament.assignment import Group
from finrl_pod.tournament.cohort import CohortTrainer
from finrl_pod.tournament.executor import Executor, LocalExecutor
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.scoring import MarketScorer
from finrl_pod.tournament.tournament import Tournament
from finrl_pod.types import MarketTensor
from tests.markets import random_market

DATA = "d" * 64
TRAIN, VALIDATION = (0, 99), (102, 138)
AGENT: dict[str, Any] = {"hidden": (4, 4), "horizon": 8, "minibatches": 2}
SAMPLES = 8 * 8  # one iteration: horizon x environments


def small_config(
    *, seed: int = 5, agent: dict[str, Any] | None = None, cohorts: tuple[AgentConfig, ...] = (), **tournament: Any
) -> RunConfig:
    settings = {
        "pods": 2,
        "generations": 3,
        "samples_per_generation": 2 * SAMPLES,
        "leaderboard": 4,
        "champion": 2,
        "exploit_fraction": 0.5,
    }
    return RunConfig(
        seed=seed,
        threads=1,
        environment=EnvironmentConfig(window=30, envs=8, group=4),
        agent=PPOConfig(**{**AGENT, **(agent or {})}),
        tournament=TournamentConfig(**{**settings, **tournament}),
        cohorts=cohorts,
    )


def small_market() -> MarketTensor:
    return random_market(1, bars=140, leak=True)


def trainer(config: RunConfig, number: int = 0, market: MarketTensor | None = None) -> CohortTrainer:
    """Trainer of shard `number`."""
    del number
    prices = market or small_market()
    first, last = TRAIN

    def environments(members: Sequence[int]) -> Any:
        return make_env(prices, config.environment, members=members, first=first, last=last, mandate=config.mandate)

    return CohortTrainer(config, environments, MarketScorer(prices, config, VALIDATION), DATA)


def tournament(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    report: Any = lambda _: None,
    market: Any = None,
    executor: Executor | None = None,
    groups: Sequence[Group] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Tournament:
    """A tournament in `folder`, new or resumed."""
    opener = RunDirectory.resume if resume else RunDirectory.create
    local = executor or LocalExecutor(trainer(config, market=market))
    return Tournament(config, opener(folder, config, DATA), local, report, groups=groups, clock=clock)
