"""How a result depends on what trading costs: the same decisions under a range of proportional costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from finrl_pod.evaluate.replay import Job, Recording, replay
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import MarketTensor

COSTS_BPS = (0.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
CURVE_METRICS = ("cumulative_return", "annual_return", "sharpe", "max_drawdown", "costs_paid")


def cost_curve(
    recorded: Recording,
    market: MarketTensor,
    first: int,
    last: int,
    rules: ExecutionRules,
    cash: float,
    costs_bps: Sequence[float] = COSTS_BPS,
) -> list[dict[str, float]]:
    """A row for each cost in basis points, with the metrics under it; the further models of `rules` stay as they
    are."""
    tables = torch.from_numpy(recorded.table(market.times)).unsqueeze(0)
    jobs = [Job(0, first, last, replace(rules, cost_rate=cost / 1e4)) for cost in costs_bps]
    done = replay(market, tables, jobs, cash)
    return [
        {"cost_bps": float(cost), **{name: metrics[name] for name in CURVE_METRICS}}
        for cost, metrics in zip(costs_bps, done.metrics(), strict=True)
    ]
