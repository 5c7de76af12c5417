"""Leaked future: real prices, and a feature with the return of each stock over the interval decided on.

The oracle puts everything into the best stock at every bar, under the same accounting and costs. As placebos the same
agent is trained on leaks without information about the interval: shifted into the past, and shuffled over the assets.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from functools import cache
from typing import Any

import numpy as np
import torch
from finrl_pod_envs.trading_envs import PortfolioEnv
from finrl_pod_strategies.baselines import EqualWeight

from benchmarks.harness.rows import Row, log_progress, median_row
from benchmarks.harness.simulated_markets import BASIS_POINT, REWARD_LAG, shifted, shuffled_over_assets
from benchmarks.learning.training import Recipe, TrainedAgent, log_returns, train
from finrl_pod.data.built_in_panels import load_sample
from finrl_pod.data.splits import make_splits
from finrl_pod.data.tensor import build_market, leaked_return, to_device, with_extra_feature
from finrl_pod.evaluate.backtest import backtest, simulate
from finrl_pod.evaluate.significance import mean_interval
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.market.rules import rules_of
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import EnvironmentConfig, PPOConfig, SplitConfig
from finrl_pod.types import Floats, MarketTensor, Panel, Tensor

FEATURES = ("return_1", "return_21", "volatility_63")
# The leak of bar t - 1 is the return between the decision and its fill: profiting from it means filling too early.
PLACEBO_SHIFT = 1
CONFIDENCE_LEVEL = 0.95
LOOKS = 10  # evaluations while training

PPO = PPOConfig(horizon=16, epochs=2, minibatches=4, learning_rate=1e-2, gamma=0.5, gae_lambda=0.9)
EQUIVARIANT = Recipe(EnvironmentConfig(envs=256, group=16), PPO, samples=500_000)
MLP = Recipe(
    EQUIVARIANT.environment,
    dataclasses.replace(PPO, policy="mlp", hidden=(64, 64), learning_rate=3e-3),
    samples=1_500_000,
)


def seconds_to_share(
    share: float, panel: Panel, recipe: Recipe, seed: int, device: torch.device
) -> tuple[float, float]:
    """Train on the leak in the first three quarters of a panel until an agent earns a share of the oracle on the rest.

    Returns seconds without the evaluations, and the best share; it is lower if all samples were used.
    """
    train_last = 3 * len(panel.times) // 4
    market = build_market(panel, FEATURES, (0, train_last))
    leaky, oracle = leak_future(market, train_last, recipe, device)
    env = PortfolioEnv(leaky, recipe.environment, first=market.first, last=train_last - REWARD_LAG)
    learner = Learner(env, recipe.agent, seed=seed)
    evaluating = 0.0
    best_share = 0.0
    looks = 0
    start = time.perf_counter()

    def look(learner: Learner, _: Any) -> bool:
        nonlocal evaluating, best_share, looks
        if learner.samples[0] < (looks + 1) * recipe.samples / LOOKS:
            return True
        looks += 1
        pause_start = time.perf_counter()
        agent = TrainedAgent(learner, env.config, learner.samples[0], 0.0)
        best_share = float(log_returns(agent, leaky, train_last + 1, market.steps).mean()) / oracle
        evaluating += time.perf_counter() - pause_start
        return best_share < share

    learner.learn(recipe.samples, callback=look)
    return time.perf_counter() - start - evaluating, best_share


@cache
def sample_market() -> tuple[Panel, MarketTensor, int]:
    """Return the sample panel, its market, and the last training bar."""
    panel = load_sample()
    train_last = make_splits(panel.times, SplitConfig()).train.last
    return panel, build_market(panel, FEATURES, (0, train_last)), train_last


def oracle_growth(market: MarketTensor, leak: Floats, first: int, last: int, rules: ExecutionRules) -> float:
    """Return the mean log growth per bar of always holding the asset with the highest leak [T, N], starting in cash."""
    best = torch.from_numpy(np.nan_to_num(leak, nan=-np.inf).argmax(1))
    everything = torch.eye(market.shape[1], dtype=torch.float64)

    def decide(t: int, cash: Tensor, shares: Tensor) -> Tensor:  # noqa: ARG001
        return everything[best[t]].unsqueeze(0)

    ledger = simulate(market, decide, first, last, rules, 1e6)
    return float(ledger.log_returns.mean())


def leak_future(
    market: MarketTensor, train_last: int, recipe: Recipe, device: torch.device
) -> tuple[MarketTensor, float]:
    """Return the market with the leak as a feature, and the oracle growth on the bars after `train_last`."""
    leak = leaked_return(market)
    oracle = oracle_growth(market, leak, train_last + 1, market.steps, rules_of(recipe.environment))
    return to_device(with_extra_feature(market, "leak", leak, (0, train_last)), device), oracle


def capture(
    market: MarketTensor, train_last: int, recipe: Recipe, seed: int, device: torch.device, label: str
) -> tuple[float, float, TrainedAgent]:
    """Train on the leak up to bar `train_last` and evaluate on the bars after it.

    Returns the share of the oracle growth that the agent earns, the oracle growth (mean log growth per bar), and the
    agent.
    """
    leaky, oracle = leak_future(market, train_last, recipe, device)
    agent = train(leaky, recipe, market.first, train_last - REWARD_LAG, seed, label)
    return float(log_returns(agent, leaky, train_last + 1, market.steps).mean()) / oracle, oracle, agent


def excess_over_equal_weight(
    panel: Panel,
    market: MarketTensor,
    feature: Floats,
    train_last: int,
    recipe: Recipe,
    seed: int,
    device: torch.device,
    label: str,
) -> tuple[Floats, TrainedAgent]:
    """Train on a feature [T, N]; return log returns per bar in excess of monthly equal weight, and the agent."""
    first = train_last + 1
    last = market.steps
    terms = (rules_of(recipe.environment), recipe.environment.cash)
    equal = backtest(EqualWeight(), panel, MarketPeriod(market, first, last, *terms))
    device_market = to_device(with_extra_feature(market, "leak", feature, (0, train_last)), device)
    agent = train(device_market, recipe, market.first, train_last - REWARD_LAG, seed, label)
    return log_returns(agent, device_market, first, last) - np.diff(np.log(equal.equity)), agent


def placebo(market: MarketTensor, kind: str, seed: int) -> Floats:
    """Return a leak [T, N] without information about the interval decided on; kind: "shifted" or "shuffled"."""
    leak = leaked_return(market)
    return shifted(leak, PLACEBO_SHIFT) if kind == "shifted" else shuffled_over_assets(leak, seed)


def capture_row(name: str, recipe: Recipe, seeds: int, device: torch.device) -> Row:
    """Measure the share of the mean log growth per bar of the oracle that agents reach out of sample."""
    _, market, train_last = sample_market()
    captures = []
    seconds = []
    for seed in range(seeds):
        share, oracle, agent = capture(market, train_last, recipe, seed, device, f"{name} seed {seed}")
        captures.append(share)
        seconds.append(round(agent.seconds, 1))
        log_progress(f"{name} seed {seed}: capture {share:.3f} in {agent.seconds:.0f} s")
    config = {
        **_config(recipe, seconds, market, train_last),
        "samples": agent.samples,
        "seconds_each": seconds,
        "captures": captures,
        "oracle_bp_a_day": oracle / BASIS_POINT,
    }
    return median_row(name, captures, "share of the oracle", config)


def placebo_row(name: str, recipe: Recipe, seeds: int, device: torch.device, *, kind: str) -> Row:
    """Measure the log growth per bar over equal weight of agents trained on an uninformative leak.

    The interval belongs to the mean over the bars of the mean over seeds.
    """
    panel, market, train_last = sample_market()
    excess_returns = []
    seconds = []
    for seed in range(seeds):
        excess, agent = excess_over_equal_weight(
            panel, market, placebo(market, kind, seed), train_last, recipe, seed, device, f"{name} seed {seed}"
        )
        excess_returns.append(excess)
        seconds.append(round(agent.seconds, 1))
        log_progress(f"{name} seed {seed}: {excess.mean() / BASIS_POINT:.2f} bp/day over equal weight")
    mean = np.mean(excess_returns, 0)
    interval = mean_interval(mean, CONFIDENCE_LEVEL)
    config = {
        **_config(recipe, seconds, market, train_last),
        "excess_bp_a_day": [float(excess.mean()) / BASIS_POINT for excess in excess_returns],
        "leak": f"shifted by {PLACEBO_SHIFT} bar" if kind == "shifted" else "ranks of each bar, shuffled over assets",
        "interval": f"{CONFIDENCE_LEVEL:.0%} of the mean over the bars, robust to autocorrelation",
    }
    value, low, high = (x / BASIS_POINT for x in interval)
    return Row(name, value, low, high, "bp a day over equal weight", config)


def _config(recipe: Recipe, seconds: list[float], market: MarketTensor, train_last: int) -> dict[str, Any]:
    dates = [str(market.times[t].astype("datetime64[D]")) for t in (train_last + 1, market.steps)]
    return {**recipe.to_dict(), "seconds": statistics.median(seconds), "test": dates}
