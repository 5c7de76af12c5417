"""Check sensitivity to costs and delays: the same decisions at other costs, and executed later."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch

from finrl_pod.data.tensor import cut_market
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, Status
from finrl_pod.evaluate.metrics import BARS_PER_YEAR, bars_per_year
from finrl_pod.evaluate.variations import Job, RecordingStrategy, simulate_recorded
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.types import Floats

CHECK = "sensitivity"
COSTS_BPS = (0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)  # basis points per side
MAX_COST_BPS = 9_999.0  # nearly the whole price
DELAYS = (0, 1, 2, 3)  # further bars between a decision and its fill


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """Annual log growth of a strategy and of a reference strategy under other costs and delays.

    growth, reference: one value per cost in basis points per side. delayed: growth of the strategy, one per delay.
    break_even: cost at which its growth falls to the growth of the reference; 0 if it is never above, infinite if it is
    above at the highest cost.
    """

    costs: tuple[float, ...]
    growth: tuple[float, ...]
    reference: tuple[float, ...]
    delays: tuple[int, ...]
    delayed: tuple[float, ...]
    break_even: float


def sensitivity(
    recording: RecordingStrategy,
    reference: RecordingStrategy,
    period: MarketPeriod,
    costs: Sequence[float] = COSTS_BPS,
    delays: Sequence[int] = DELAYS,
) -> Sensitivity:
    """Replay the recorded decisions of a strategy and of a reference in a period, under other costs and delays.

    A delayed account stays in cash until its first decision is executed.
    """
    end = period.last - period.first
    cut = cut_market(period.market, period.first, period.last)
    table = recording.table(cut.times)
    delayed_tables = [np.concatenate([np.full_like(table[:k], np.nan), table])[: len(table)] for k in delays]
    tables = torch.from_numpy(np.stack([table, reference.table(cut.times), *delayed_tables]))
    cost_rules = [dataclasses.replace(period.rules, cost_rate=cost / 1e4) for cost in costs]
    jobs = [Job(table, 0, end, rule) for table in (0, 1) for rule in cost_rules]
    jobs += [Job(2 + i, 0, end, period.rules) for i in range(len(delays))]
    periods = bars_per_year(period.market.times)
    growth = [log_growth(equity, periods) for equity in simulate_recorded(cut, tables, jobs, period.cash).equity]
    strategy_growth = tuple(growth[: len(costs)])
    base = tuple(growth[len(costs) : 2 * len(costs)])
    break_even = interpolate_break_even(costs, strategy_growth, base)
    return Sensitivity(tuple(costs), strategy_growth, base, tuple(delays), tuple(growth[2 * len(costs) :]), break_even)


def break_even_cost(
    recording: RecordingStrategy, reference: RecordingStrategy, period: MarketPeriod, *, at_least: float = 0.0
) -> float:
    """Cost in basis points at which a strategy grows no faster than its reference.

    at_least: cost up to which is tried even if it exceeds `COSTS_BPS`. Infinite if the strategy grows
    faster at the highest cost.
    """
    costs = sorted({*COSTS_BPS, min(at_least, MAX_COST_BPS)})
    return sensitivity(recording, reference, period, costs=costs, delays=()).break_even


def interpolate_break_even(costs: Sequence[float], growth: Sequence[float], reference: Sequence[float]) -> float:
    """Cost at which growth `own` falls to `reference`, linear between the given ascending costs."""
    excess = np.asarray(growth) - np.asarray(reference)
    if excess[0] <= 0:
        return 0.0
    losing_costs = np.flatnonzero(excess <= 0)
    if not len(losing_costs):
        return float("inf")
    i = int(losing_costs[0])
    share = excess[i - 1] / (excess[i - 1] - excess[i])
    return float(costs[i - 1] + share * (costs[i] - costs[i - 1]))


def log_growth(equity: Floats, periods_per_year: float = BARS_PER_YEAR) -> float:
    """Annual log growth of equity [T]; minus infinity after ruin."""
    if equity[-1] <= 0:
        return float("-inf")
    return float(np.log(equity[-1] / equity[0]) / (len(equity) - 1) * periods_per_year)


def sensitivity_findings(
    pipeline: Pipeline, result: Sensitivity, reference: str, cost: float, span: tuple[int, int], bars: str = ""
) -> list[Finding]:
    """Findings on the break-even cost and on one bar of delay.

    cost: basis points charged. span: first and last bar. bars: what these are, such as "validation".
    """
    name = pipeline.name
    period = " to ".join(str(pipeline.panel.times[bar].astype("datetime64[D]")) for bar in span)
    period = f"{bars} {period}".strip()
    if bars == "validation" and name == "champion":
        period = f"on validation, where it was selected ({period.removeprefix('validation ')})"
    is_reference = name == reference
    reference = reference.replace("_", " ")
    value = result.break_even
    status: Status = "pass"
    if is_reference:
        value = float(np.interp(cost, result.costs, result.growth) - np.interp(2 * cost, result.costs, result.growth))
        growth_loss = _annual(result.growth, result.costs, cost) - _annual(result.growth, result.costs, 2 * cost)
        message = f"Doubling the costs reduces the CAGR of {name}, the reference, by {growth_loss:.2%}, {period}."
    elif np.interp(cost, result.costs, np.asarray(result.growth) - np.asarray(result.reference)) <= 0:
        status = "warn"
        message = f"{name} does not grow faster than {reference} at {cost:g} basis points, {period}."
    else:
        added_growth = _annual(result.growth, result.costs, cost) - _annual(result.reference, result.costs, cost)
        status = "pass" if value >= 2 * cost else "warn"
        even = f"{value:.1f}" if math.isfinite(value) else f"more than {result.costs[-1]:g}"
        value = min(value, result.costs[-1])
        message = (
            f"The CAGR of {name} is {added_growth:.2%} above the CAGR of {reference}, {period}; it breaks even at "
            f"{even} basis points."
        )
    if pipeline.rules.frictions is not None and (models := pipeline.rules.frictions.costs):
        message += f" Fills also pay the costs of {', '.join(type(model).__name__ for model in models)}."
    loss = result.delayed[0] - result.delayed[1]
    undelayed_growth, delayed_growth = (math.expm1(growth) for growth in result.delayed[:2])
    delay_message = (
        f"One bar of delay {'raises' if loss < 0 else 'reduces'} the CAGR of {undelayed_growth:.2%} by "
        f"{abs(undelayed_growth - delayed_growth):.2%}, {period}."
    )
    delay_status: Status = "warn" if result.delayed[0] > 0 >= result.delayed[1] else "pass"
    return [
        Finding(CHECK, status, "costs", message, value=value),
        Finding(CHECK, delay_status, "delay", delay_message, value=loss),
    ]


def _annual(growth: Sequence[float], costs: Sequence[float], cost: float) -> float:
    """Compound annual growth rate at a cost, from annual log growth by cost."""
    return math.expm1(float(np.interp(cost, costs, growth)))
