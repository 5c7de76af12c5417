"""Samples a second of the analytic policy gradient, end to end, on random walks with a leaked future."""

from __future__ import annotations

import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import PortfolioEnv

from finrl_pod.data.tensor import leaked_return, to_device, with_extra_feature
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AnalyticConfig
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod_app.bench.rows import Row, over_runs
from finrl_pod_app.bench.speed import CASH, COST_BPS, SpeedSettings, make_market, rates
from finrl_pod_app.bench.training import BASIS_POINT

SAMPLES_A_RUN, MOST_ITERATIONS = 1_000_000, 32  # a run lasts a few seconds at any size


def analytic_row(settings: SpeedSettings, device: torch.device) -> Row:
    """Environment steps a second, forward and back through policy and market, of all members together.

    The market's table holds what the leaked task's does: some columns of noise and what each asset will earn. What
    the agent earned in the end stands in the row's config: a rate of something that learns.
    """
    settings.check()
    agent = AnalyticConfig(
        policy=settings.policy,
        hidden=settings.hidden,
        horizon=settings.horizon,
        learning_rate_schedule="constant",
    )
    learner = Learner(_env(settings, device), agent)
    iterations = min(max(SAMPLES_A_RUN // (settings.members * learner.iteration_samples), 1), MOST_ITERATIONS)
    each = iterations * learner.iteration_samples
    earned: list[float] = []

    def work() -> int:
        metrics = learner.learn(each)
        earned.append(float(metrics["reward"].mean()) / BASIS_POINT)
        return each * settings.members

    values = rates("analytic_samples", work, settings.runs, device)
    used = ("envs", "assets", "features", "days", "horizon", "hidden", "policy", "group", "members", "runs")
    config = {name: value for name, value in settings.plain().items() if name in used}
    more = {"samples_a_run": each * settings.members, "bp_a_step": [round(x, 2) for x in earned]}
    return over_runs("analytic_samples", values, "samples/s", {**config, **more})


def _env(settings: SpeedSettings, device: torch.device) -> MarketEnv:
    market = make_market(settings, "next")
    leaky = with_extra_feature(market, "leak", leaked_return(market), (0, market.steps - 1))
    config = EnvironmentConfig(
        cost_bps=COST_BPS, cash=CASH, envs=settings.envs_each, group=settings.group_each, window=252
    )
    return PortfolioEnv(to_device(leaky, device), config, members=range(settings.members))
