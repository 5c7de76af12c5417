"""Compare learning in bfloat16 with learning in float32, by the programs of a GPU.

    python benchmarks/precision.py --out benchmarks/precision.json

Trains PPO on the leaked future twice from the same seeds, with activations and stored accounts in float32 and in
bfloat16: an MLP, and the default policy under a mandate. Without --device cuda the programs run in torch on the CPU,
which rounds to bfloat16 at the same places.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from finrl_pod_app.bench.leaked_signal import MLP, capture_row, sample_market
from finrl_pod_app.bench.rows import Row, as_json, as_table, describe, document, median_row
from finrl_pod_app.bench.simulated_markets import REWARD_LAG
from finrl_pod_app.bench.training import BASIS_POINT, Recipe, log_progress
from finrl_pod_envs.trading_envs import PortfolioEnv

from finrl_pod.data.tensor import leaked_return, to_device, with_extra_feature
from finrl_pod.native.device import as_on_device
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, PPOConfig
from finrl_pod.tournament.scoring import run_members

MANDATE = MandateConfig(base="equal_weight", tilt=2.0, trade_speed=1.0)
TILT = Recipe(
    EnvironmentConfig(envs=256, group=16),
    PPOConfig(horizon=16, epochs=2, minibatches=4, learning_rate=1e-2, gamma=0.5, gae_lambda=0.9),
    samples=300_000,
)
DTYPES = ("float32", "bfloat16")


def tilt_row(name: str, recipe: Recipe, seeds: int, device: torch.device) -> Row:
    """Log growth per bar out of sample of the default policy under `MANDATE`, in basis points."""
    _, market, train_last = sample_market()
    leaky = to_device(with_extra_feature(market, "leak", leaked_return(market), (0, train_last)), device)
    growth = []
    for seed in range(seeds):
        env = PortfolioEnv(leaky, recipe.environment, first=market.first, last=train_last - REWARD_LAG, mandate=MANDATE)
        learner = Learner(env, recipe.agent, seed=seed)
        learner.learn(recipe.samples)
        algorithm, last = learner.algorithm, market.steps
        ledger = run_members(
            algorithm.actor, algorithm.weights(), leaky, env.config, train_last + 1, last, mandate=MANDATE
        )
        growth.append(float(ledger.log_returns.mean()) / BASIS_POINT)
        log_progress(f"{name} seed {seed}: {growth[-1]:.2f} bp a bar")
    return median_row(name, growth, "bp a bar", {**recipe.to_dict(), "each": growth})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, help="training samples of every agent")
    parser.add_argument("--out", type=Path, help="write the JSON to this file")
    options = parser.parse_args()
    device, rows = torch.device(options.device), []
    for name, measure, recipe in (("leaked_ppo_mlp", capture_row, MLP), ("leaked_ppo_mandate", tilt_row, TILT)):
        for dtype in DTYPES:
            agent = replace(recipe.agent, activation_dtype=dtype)  # type: ignore[call-arg]
            each = replace(recipe, agent=agent, samples=options.samples or recipe.samples)
            with as_on_device() if device.type == "cpu" else nullcontext():
                rows.append(measure(f"{name}, {dtype}", each, options.seeds, device))
    sys.stdout.write(as_table(rows))
    if options.out is not None:
        options.out.write_text(as_json(document(rows, describe(device))))


if __name__ == "__main__":
    main()
