"""Compare the spread over seeds of Stable-Baselines3's PPO, our PPO with and without H-term, and critic ensembles.

    python -m benchmarks stability                                 # 10 seeds of each; hours
    python -m benchmarks stability --only pendulum/ppo --seeds 2   # a part
    python -m benchmarks stability --table                         # no training

Two tasks. *pendulum*: Pendulum-v1, score: mean return of 20 episodes without exploration; PPO with the Zoo's
hyperparameters for 50,000 steps, SAC with 64x64 networks for 10,000. *portfolio*: one planted market of 10 assets,
64x64 MLPs, 100,000 samples; score: fraction of the attainable growth on the held-out half. There Stable-Baselines3 uses
its defaults with our gamma, lambda and environments, and VecNormalize.

Every finished training is a line of `benchmarks/stability.jsonl`; existing ones are not repeated. The table shows mean,
standard deviation, and the ratio of variances to Stable-Baselines3's PPO with its 90% bootstrap interval.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finrl_pod_envs.gym import GymMarketEnv
from finrl_pod_envs.observation import flat
from finrl_pod_envs.trading_envs import make_env

from benchmarks.harness.results import FOLDER, Row, append, read
from benchmarks.harness.simulated_markets import REWARD_LAG
from benchmarks.learning.planted import attainable_growth, planted_market
from benchmarks.studies.sb3_study import Act, evaluate, load, train_ours, train_theirs
from benchmarks.studies.zoo_settings import Cell
from finrl_pod.market.rules import rules_of
from finrl_pod.rl.networks.observation_adapter import SCORE_SCALE
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AgentConfig, PPOConfig, SACConfig
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor

RESULTS_FILE = FOLDER / "stability.jsonl"
SEEDS, DRAWS, LEVEL = 10, 10_000, 0.90
REFERENCE = "Stable-Baselines3 PPO"
RULES = EnvironmentConfig(envs=128, group=16)
BARS, ASSETS, INFORMATION_COEFFICIENT, SAMPLES = 4_000, 10, 0.1, 100_000

Score = Callable[[int], float]


def main() -> int:
    options = _options()
    torch.set_num_threads(1)
    if not options.table:
        load()
        for seed in range(options.seeds):
            for task, variants in TASKS.items():
                for name, score in variants.items():
                    key = {"task": task, "variant": name, "seed": seed}
                    selected = not options.only or task in options.only or f"{task}/{name}" in options.only
                    if not selected or any(key.items() <= row.items() for row in read(options.results)):
                        continue
                    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {task}: {name}, seed {seed}\n")
                    began = time.process_time()
                    value = score(seed)
                    append(
                        options.results, {**key, "score": value, "cpu_seconds": round(time.process_time() - began, 2)}
                    )
    sys.stdout.write(table(read(options.results)))
    return 0


# ---------------------------------------------------------------------- Pendulum

PPO_CELL, SAC_CELL = (
    Cell(name, "Pendulum-v1", name, steps, SEEDS) for name, steps in (("ppo", 50_000), ("sac", 10_000))
)


def _pendulum(train: Callable[[Cell, int], tuple[int, Act]], cell: Cell, seed: int) -> float:
    _, act = train(cell, seed)
    return float(np.mean(evaluate(act, cell.env)))


def _ours(cell: Cell, **changes: Any) -> Score:
    return partial(_pendulum, partial(train_ours, **changes), cell)


# ---------------------------------------------------------------------- the portfolio task


@cache
def _market() -> tuple[MarketTensor, int, float]:
    """The market, the last bar to train on, and the attainable growth per bar on the rest."""
    market, train_last = planted_market(0, BARS, ASSETS, INFORMATION_COEFFICIENT)
    return market, train_last, attainable_growth(market, train_last + 1, market.steps, rules_of(RULES)).best


def held_out_score(act: Callable[[Any], Any]) -> float:
    """Fraction of the attainable growth on the second half. act: observation -> action [1, 1, 1 + N] of one account."""
    market, train_last, best = _market()
    first, last = train_last + 1, market.steps
    rules = dataclasses.replace(RULES, window=last - first)
    env = make_env(market, rules, first=first, last=last, envs=1, group=1)
    observation, growth, over = env.reset(0, stagger=False), 0.0, False
    while not over:
        out = env.step(act(observation))
        observation, growth = out.observation, growth + float(out.reward)
        over = bool(out.terminated) or bool(out.truncated)
    return growth / (last - first) / best


def _portfolio(agent: AgentConfig, seed: int) -> float:
    market, train_last, _ = _market()
    env = make_env(market, RULES, first=market.first, last=train_last - REWARD_LAG)
    learner = Learner(env, agent, seed=seed, threads=1)
    learner.learn(SAMPLES)
    actor, weights = learner.algorithm.actor, learner.algorithm.weights()

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
        "PPO": _ours(PPO_CELL),
        "PPO with the H-term": _ours(PPO_CELL, h_term=1.0),
        "SAC, 1 critic": _ours(SAC_CELL, hidden=(64, 64), critics=1),
        "SAC, min of 2 critics": _ours(SAC_CELL, hidden=(64, 64)),
        "SAC, min of 2 out of 5": _ours(SAC_CELL, hidden=(64, 64), critics=5, critic_rule="subset", critic_subset=2),
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


# ---------------------------------------------------------------------- results


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with a line per variant that has results."""
    lines = [
        f"| task | agent | seeds | mean | standard deviation | variance against {REFERENCE} ({LEVEL:.0%} interval) |",
        "|---|---|---|---|---|---|",
    ]
    for task, variants in TASKS.items():
        scores = {
            name: np.array([row["score"] for row in rows if (row["task"], row["variant"]) == (task, name)])
            for name in variants
        }
        for name, own in scores.items():
            if not len(own):
                continue
            ratio, others = "–", scores[REFERENCE]
            if name != REFERENCE and min(len(own), len(others)) >= 3:
                value, low, high = ratio_of_variances(own, others, np.random.default_rng(0))
                ratio = f"{value:.2f} ({low:.2f} to {high:.2f})"
            spread = f"{own.std(ddof=1):.3g}" if len(own) > 1 else "–"
            lines.append(f"| {task} | {name} | {len(own)} | {own.mean():.4g} | {spread} | {ratio} |")
    return "\n".join(lines) + "\n"


def ratio_of_variances(
    one: np.ndarray, other: np.ndarray, generator: np.random.Generator
) -> tuple[float, float, float]:
    """Return var(one) / var(other) of scores [n] and [m], and its percentile interval over independent resamples."""
    drawn = [x[generator.integers(0, len(x), (DRAWS, len(x)))].var(1, ddof=1) for x in (one, other)]
    usable = drawn[1] > 0  # a resample may repeat a single seed
    low, high = np.quantile(drawn[0][usable] / drawn[1][usable], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    below = other.var(ddof=1)
    return float(one.var(ddof=1) / below) if below else math.inf, float(low), float(high)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="TASK[/AGENT]", help="run these only")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="default %(default)s")
    parser.add_argument("--table", action="store_true", help="print the table without training")
    parser.add_argument("--results", type=Path, default=RESULTS_FILE, help="default %(default)s")
    return parser.parse_args()
