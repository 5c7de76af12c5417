"""Benchmark of the analytic policy gradient: samples/s end to end, on random walks with a leaked future."""

from __future__ import annotations

import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import PortfolioEnv

from benchmarks.harness.rows import Row, median_row
from benchmarks.learning.training import BASIS_POINT
from benchmarks.speed.speed_env import CASH, COST_BPS, SpeedSettings, make_market, measure_rates
from finrl_pod.data.tensor import leaked_return, to_device, with_extra_feature
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AnalyticConfig
from finrl_pod.settings.run import EnvironmentConfig

SAMPLES_PER_RUN, MAX_ITERATIONS = 1_000_000, 32  # a few seconds per run at any size


def analytic_row(settings: SpeedSettings, device: torch.device) -> Row:
    """Measure samples/s forward and backward through policy and market, over all members.

    Features are noise and each asset's future return, so the agent can learn; its final reward is in the row's config.
    """
    settings.check()
    agent = AnalyticConfig(
        policy=settings.policy,
        hidden=settings.hidden,
        horizon=settings.horizon,
        learning_rate_schedule="constant",
    )
    learner = Learner(_env(settings, device), agent)
    iterations = min(max(SAMPLES_PER_RUN // (settings.members * learner.iteration_samples), 1), MAX_ITERATIONS)
    each = iterations * learner.iteration_samples
    earned: list[float] = []

    def work() -> int:
        metrics = learner.learn(each)
        earned.append(float(metrics["reward"].mean()) / BASIS_POINT)
        return each * settings.members

    values = measure_rates("analytic_samples", work, settings.runs, device)
    used = ("envs", "assets", "features", "days", "horizon", "hidden", "policy", "group", "members", "runs")
    config = {name: value for name, value in settings.to_dict().items() if name in used}
    more = {"samples_a_run": each * settings.members, "bp_a_step": [round(x, 2) for x in earned]}
    return median_row("analytic_samples", values, "samples/s", {**config, **more})


def _env(settings: SpeedSettings, device: torch.device) -> MarketEnv:
    market = make_market(settings, "next")
    leaky = with_extra_feature(market, "leak", leaked_return(market), (0, market.steps - 1))
    config = EnvironmentConfig(
        cost_bps=COST_BPS, cash=CASH, envs=settings.envs_each, group=settings.group_each, window=252
    )
    return PortfolioEnv(to_device(leaky, device), config, members=range(settings.members))
