"""Spread over seeds of PPO of Stable-Baselines3, of our PPO with and without H-term, and of critic ensembles.

    python -m benchmarks stability                                 # 10 seeds of each; hours
    python -m benchmarks stability --only pendulum/PPO --seeds 2   # a part
    python -m benchmarks stability --table                         # no training

Two tasks. *pendulum*: Pendulum-v1, score: mean return of 20 episodes without exploration; PPO with hyperparameters
of the Zoo for 50,000 steps, SAC with 64x64 networks for 10,000. *portfolio*: one planted market of 10 assets,
64x64 MLPs, 100,000 samples; score: fraction of the attainable growth on the held-out half. There Stable-Baselines3 uses
its defaults with our gamma, lambda and environments, and VecNormalize.

Every finished training is a line of stability.jsonl and is not repeated. Rows: scores, and the ratio of variances to
PPO of Stable-Baselines3 with its 90% bootstrap interval.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finrl_pod_envs.gym import GymMarketEnv
from finrl_pod_envs.observation import flat
from finrl_pod_envs.trading_envs import make_env

from benchmarks.harness.results import FOLDER, Job, Record, read, run_missing
from benchmarks.harness.rows import Row, median_row
from benchmarks.harness.simulated_markets import REWARD_LAG
from benchmarks.learning.planted import attainable_growth, planted_market
from benchmarks.studies.sb3_study import Act, evaluate, load, train_ours, train_theirs
from benchmarks.studies.statistics import LEVEL, ratio_of_variances
from benchmarks.studies.zoo_settings import Cell
from finrl_pod.market.rules import rules_of
from finrl_pod.rl.networks.observation_adapter import SCORE_SCALE
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AgentConfig, PPOConfig, SACConfig
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor

SEEDS = 10
FEWEST_SEEDS = 3
REFERENCE = "Stable-Baselines3 PPO"
RULES = EnvironmentConfig(envs=128, group=16)
BARS = 4_000
ASSETS = 10
INFORMATION_COEFFICIENT = 0.1
SAMPLES = 100_000

Score = Callable[[int], float]


@dataclass(frozen=True)
class StabilitySettings:
    """Settings of `stability`. only: TASK or TASK/AGENT; empty for all. table: print stored results only."""

    only: tuple[str, ...] = ()
    seeds: int = SEEDS
    table: bool = False
    results: Path = FOLDER / "stability.jsonl"


def stability_rows(settings: StabilitySettings) -> list[Row]:
    """Train what the file lacks; return the rows of all results."""
    if not settings.table:
        load()
        run_missing(settings.results, jobs(settings))
    return [*rows_of(read(settings.results))]


def jobs(settings: StabilitySettings) -> Iterator[Job]:
    """The selected trainings, seed by seed."""
    for seed in range(settings.seeds):
        for task, variants in TASKS.items():
            for name, score in variants.items():
                if not settings.only or {task, f"{task}/{name}"} & set(settings.only):
                    yield Job({"task": task, "variant": name, "seed": seed}, partial(_record, score, seed))


def _record(score: Score, seed: int) -> dict[str, float]:
    return {"score": score(seed)}


PPO_CELL, SAC_CELL = (
    Cell(name, "Pendulum-v1", name, steps, SEEDS) for name, steps in (("ppo", 50_000), ("sac", 10_000))
)


def _pendulum(train: Callable[[Cell, int], tuple[int, Act]], cell: Cell, seed: int) -> float:
    _, act = train(cell, seed)
    return float(np.mean(evaluate(act, cell.env)))


def _own_score(cell: Cell, **changes: Any) -> Score:
    return partial(_pendulum, partial(train_ours, **changes), cell)


@cache
def _market() -> tuple[MarketTensor, int, float]:
    """The market, the last bar to train on, and the attainable growth per bar on the rest."""
    market, train_last = planted_market(0, BARS, ASSETS, INFORMATION_COEFFICIENT)
    return market, train_last, attainable_growth(market, train_last + 1, market.steps, rules_of(RULES)).best


def held_out_score(act: Callable[[Any], Any]) -> float:
    """Fraction of the attainable growth on the second half. act: observation -> action [1, 1, 1 + N] of one account."""
    market, train_last, best = _market()
    first = train_last + 1
    last = market.steps
    rules = dataclasses.replace(RULES, window=last - first)
    env = make_env(market, rules, first=first, last=last, envs=1, group=1)
    observation = env.reset(0, stagger=False)
    growth = 0.0
    is_over = False
    while not is_over:
        out = env.step(act(observation))
        observation = out.observation
        growth = growth + float(out.reward)
        is_over = bool(out.terminated) or bool(out.truncated)
    return growth / (last - first) / best


def _portfolio(agent: AgentConfig, seed: int) -> float:
    market, train_last, _ = _market()
    env = make_env(market, RULES, first=market.first, last=train_last - REWARD_LAG)
    learner = Learner(env, agent, seed=seed, threads=1)
    learner.learn(SAMPLES)
    actor = learner.algorithm.actor
    weights = learner.algorithm.weights()

    def act(observation: Any) -> torch.Tensor:
        day, account = observation
        return actor.action(weights, market.features[day], account.unsqueeze(1), None).view(1, 1, -1)

    return held_out_score(act)


def _portfolio_sb3(seed: int) -> float:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    market, train_last, _ = _market()
    make = partial(GymMarketEnv, market, RULES, first=market.first, last=train_last - REWARD_LAG)
    env = VecNormalize(DummyVecEnv([make] * 16), gamma=OURS.gamma)
    env.seed(seed)
    model = PPO("MlpPolicy", env, n_steps=128, gamma=OURS.gamma, gae_lambda=OURS.gae_lambda, seed=seed, device="cpu")
    model.learn(SAMPLES)

    def act(observation: Any) -> torch.Tensor:
        row = env.normalize_obs(flat(market, observation)[0].numpy())
        action = torch.from_numpy(model.predict(row, deterministic=True)[0])
        return action.clamp(-1, 1).mul(SCORE_SCALE).unsqueeze(0)

    return held_out_score(act)


OURS = PPOConfig(policy="mlp", hidden=(64, 64), learning_rate=1e-3)
REPLAY = SACConfig(policy="mlp", hidden=(64, 64), batch_size=256, gradient_steps=16, learning_starts=2_560)

TASKS: Mapping[str, Mapping[str, Score]] = {
    "pendulum": {
        REFERENCE: partial(_pendulum, train_theirs, PPO_CELL),
        "PPO": _own_score(PPO_CELL),
        "PPO with the H-term": _own_score(PPO_CELL, h_term=1.0),
        "SAC, 1 critic": _own_score(SAC_CELL, hidden=(64, 64), critics=1),
        "SAC, min of 2 critics": _own_score(SAC_CELL, hidden=(64, 64)),
        "SAC, min of 2 out of 5": _own_score(
            SAC_CELL, hidden=(64, 64), critics=5, critic_rule="subset", critic_subset=2
        ),
    },
    "portfolio": {
        REFERENCE: _portfolio_sb3,
        "PPO": partial(_portfolio, OURS),
        "PPO with the H-term": partial(_portfolio, dataclasses.replace(OURS, h_term=1.0)),
        "SAC, 1 critic": partial(_portfolio, dataclasses.replace(REPLAY, critics=1)),
        "SAC, min of 2 critics": partial(_portfolio, REPLAY),
        "SAC, min of 2 out of 5": partial(
            _portfolio, dataclasses.replace(REPLAY, critics=5, critic_rule="subset", critic_subset=2)
        ),
    },
}


def rows_of(records: Sequence[Record]) -> Iterator[Row]:
    """Rows of each variant that has results."""
    for task, variants in TASKS.items():
        scores = {
            name: np.array([r["score"] for r in records if (r["task"], r["variant"]) == (task, name)])
            for name in variants
        }
        for name, values in scores.items():
            if not len(values):
                continue
            spread = float(values.std(ddof=1)) if len(values) > 1 else None
            config = {"seeds": len(values), "mean": float(values.mean()), "standard_deviation": spread}
            yield median_row(f"{task}, {name}", values.tolist(), "score", config)
            if name != REFERENCE and min(len(values), len(scores[REFERENCE])) >= FEWEST_SEEDS:
                ratio, low, high = ratio_of_variances(values, scores[REFERENCE], is_paired=False)
                interval = {"interval": f"{LEVEL:.0%} bootstrap over seeds"}
                yield Row(f"{task}, {name}, variance", ratio, low, high, f"of the variance of {REFERENCE}", interval)
