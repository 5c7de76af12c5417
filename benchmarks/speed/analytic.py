"""Benchmark of the analytic policy gradient: samples/s end to end, on random walks with a leaked future."""

from __future__ import annotations

import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import PortfolioEnv

from benchmarks.harness.rows import CPU, Row, measure_rates, median_row
from benchmarks.harness.simulated_markets import BASIS_POINT
from benchmarks.speed.speed_env import CASH, COST_BPS, SpeedSettings, make_market
from finrl_pod.data.tensor import leaked_return, to_device, with_extra_feature
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AnalyticConfig
from finrl_pod.settings.run import EnvironmentConfig

# a few seconds per run at any size
SAMPLES_PER_RUN = 1_000_000
MAX_ITERATIONS = 32


SIZE = SpeedSettings(
    envs=4096, group=64, assets=20, features=2, horizon=8, hidden=(32, 32), policy="equivariant", kind="portfolio"
)
USED = ("envs", "assets", "features", "days", "horizon", "hidden", "policy", "group", "members", "runs")


def analytic_rows(settings: SpeedSettings = SIZE, device: torch.device = CPU) -> list[Row]:
    """Measure samples/s forward and backward through policy and market, over all members.

    Features are noise and the future return, so the agent can learn; its final reward is in the config of the row.
    """
    settings.check()
    agent = AnalyticConfig(
        policy=settings.policy, hidden=settings.hidden, horizon=settings.horizon, learning_rate_schedule="constant"
    )
    learner = Learner(_env(settings, device), agent)
    iterations = min(max(SAMPLES_PER_RUN // (settings.members * learner.iteration_samples), 1), MAX_ITERATIONS)
    samples = iterations * learner.iteration_samples
    rewards: list[float] = []

    def work() -> int:
        metrics = learner.learn(samples)
        rewards.append(float(metrics["reward"].mean()) / BASIS_POINT)
        return samples * settings.members

    values = measure_rates("analytic_samples", work, settings.runs, device)
    config = {name: getattr(settings, name) for name in USED}
    config |= {"samples_a_run": samples * settings.members, "bp_a_step": [round(x, 2) for x in rewards]}
    return [median_row("analytic_samples", values, "samples/s", config)]


def _env(settings: SpeedSettings, device: torch.device) -> MarketEnv:
    market = make_market(settings, "next")
    leaky = with_extra_feature(market, "leak", leaked_return(market), (0, market.steps - 1))
    config = EnvironmentConfig(
        cost_bps=COST_BPS, cash=CASH, envs=settings.envs_each, group=settings.group_each, window=252
    )
    return PortfolioEnv(to_device(leaky, device), config, members=range(settings.members))
