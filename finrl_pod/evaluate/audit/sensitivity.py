"""Check sensitivity to costs and delays: the same decisions at other costs, and executed later."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch

from finrl_pod.data.tensor import cut_market
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline
from finrl_pod.evaluate.metrics import BARS_PER_YEAR, bars_per_year
from finrl_pod.evaluate.variations import Job, RecordingStrategy, simulate_recorded
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import Floats, MarketTensor

CHECK = "sensitivity"
COSTS_BPS = (0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)  # basis points per side
MAX_COST_BPS = 9_999.0  # nearly the whole price
DELAYS = (0, 1, 2, 3)  # further bars between a decision and its fill
Decisions = Sequence[Floats | None]  # target weights [N] of each bar in order, None to keep the holdings


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """Annual log growth of a strategy and of a reference strategy under other costs and delays.

    growth, reference: by cost in basis points per side. delayed: of the strategy, by bars of delay. break_even: cost at
    which its growth falls to the reference's; 0 if it is never above, infinite if it is above at the highest cost.
    """

    costs: tuple[float, ...]
    growth: tuple[float, ...]
    reference: tuple[float, ...]
    delays: tuple[int, ...]
    delayed: tuple[float, ...]
    break_even: float


def sensitivity(
    decisions: Decisions,
    reference: Decisions,
    market: MarketTensor,
    first: int,
    last: int,
    rules: ExecutionRules,
    cash: float,
    costs: Sequence[float] = COSTS_BPS,
    delays: Sequence[int] = DELAYS,
) -> Sensitivity:
    """Replay the decisions of bars first to last - 1, and those of the reference, under other costs and delays.

    A delayed account stays in cash until its first decision is executed.
    """
    recorded = (decisions, reference, *([*[None] * delay, *decisions][: last - first] for delay in delays))
    replayed, end = cut_market(market, first, last), last - first
    tables = torch.from_numpy(np.stack([_target_table(rows, replayed) for rows in recorded]))
    cost_rules = [dataclasses.replace(rules, cost_rate=cost / 1e4) for cost in costs]
    jobs = [Job(which, 0, end, rule) for which in (0, 1) for rule in cost_rules]
    jobs += [Job(2 + i, 0, end, rules) for i in range(len(delays))]
    periods = bars_per_year(market.times)
    growth = [log_growth(equity, periods) for equity in simulate_recorded(replayed, tables, jobs, cash).equity]
    own, base, late = growth[: len(costs)], growth[len(costs) : 2 * len(costs)], growth[2 * len(costs) :]
    return Sensitivity(
        tuple(costs), tuple(own), tuple(base), tuple(delays), tuple(late), interpolate_break_even(costs, own, base)
    )


def break_even_cost(
    own: RecordingStrategy,
    reference: RecordingStrategy,
    market: MarketTensor,
    first: int,
    last: int,
    rules: ExecutionRules,
    cash: float,
    *,
    at_least: float = 0.0,
) -> float:
    """Cost in basis points at which one strategy's decisions grow no faster than the reference's.

    at_least: a cost up to which is tried even if it is above those of `COSTS_BPS`. Infinite if the strategy grows
    faster at the highest cost.
    """
    terms = (market, first, last, rules, cash)
    costs = sorted({*COSTS_BPS, min(at_least, MAX_COST_BPS)})
    return sensitivity(own.decisions, reference.decisions, *terms, costs=costs, delays=()).break_even


def interpolate_break_even(costs: Sequence[float], own: Sequence[float], reference: Sequence[float]) -> float:
    """Cost at which growth `own` falls to `reference`, linear between the given ascending costs."""
    excess = np.asarray(own) - np.asarray(reference)
    if excess[0] <= 0:
        return 0.0
    below = np.flatnonzero(excess <= 0)
    if not len(below):
        return float("inf")
    i = int(below[0])
    share = excess[i - 1] / (excess[i - 1] - excess[i])
    return float(costs[i - 1] + share * (costs[i] - costs[i - 1]))


def log_growth(equity: Floats, periods_per_year: float = BARS_PER_YEAR) -> float:
    """Annual log growth of equity [T]; minus infinity after ruin."""
    if equity[-1] <= 0:
        return float("-inf")
    return float(np.log(equity[-1] / equity[0]) / (len(equity) - 1) * periods_per_year)


def sensitivity_findings(
    pipeline: Pipeline, of: Sensitivity, reference: str, cost: float, span: tuple[int, int], bars: str = ""
) -> list[Finding]:
    """Findings on the break-even cost and on one bar of delay.

    cost: basis points charged. span: first and last bar. bars: what these are, such as "validation".
    """
    name = pipeline.name
    period = " to ".join(str(pipeline.panel.times[bar].astype("datetime64[D]")) for bar in span)
    period = f"{bars} {period}".strip()
    if bars == "validation" and name == "champion":
        period = f"on validation, where it was selected ({period.removeprefix('validation ')})"
    same, reference = name == reference, reference.replace("_", " ")
    if same:
        loss = float(np.interp(cost, of.costs, of.growth) - np.interp(2 * cost, of.costs, of.growth))
        shown = _annual(of.growth, of.costs, cost) - _annual(of.growth, of.costs, 2 * cost)
        message = f"Doubling the costs reduces the CAGR of {name}, the reference, by {shown:.2%}, {period}."
        return [Finding(CHECK, "pass", "costs", message, value=loss), _delay_finding(of, period)]
    excess = float(np.interp(cost, of.costs, np.asarray(of.growth) - np.asarray(of.reference)))
    if excess <= 0:
        message = f"{name} does not grow faster than {reference} at {cost:g} basis points, {period}."
        return [Finding(CHECK, "warn", "costs", message, value=of.break_even), _delay_finding(of, period)]
    added = _annual(of.growth, of.costs, cost) - _annual(of.reference, of.costs, cost)
    finite = bool(np.isfinite(of.break_even))
    even = f"{of.break_even:.1f}" if finite else f"more than {of.costs[-1]:g}"
    message = (
        f"The CAGR of {name} is {added:.2%} above that of {reference}, {period}; it breaks even at {even} basis points."
    )
    value = of.break_even if finite else of.costs[-1]
    status = "pass" if of.break_even >= 2 * cost else "warn"
    return [Finding(CHECK, status, "costs", message, value=value), _delay_finding(of, period)]  # type: ignore[arg-type]


def _annual(growth: Sequence[float], costs: Sequence[float], cost: float) -> float:
    """Compound annual growth rate at a cost, from annual log growth by cost."""
    return math.expm1(float(np.interp(cost, costs, growth)))


def _delay_finding(of: Sensitivity, period: str) -> Finding:
    loss = of.delayed[0] - of.delayed[1]
    change = "raises" if loss < 0 else "reduces"
    before, late = (math.expm1(growth) for growth in of.delayed[:2])
    message = f"One bar of delay {change} the CAGR of {before:.2%} by {abs(before - late):.2%}, {period}."
    return Finding(CHECK, "warn" if of.delayed[0] > 0 >= of.delayed[1] else "pass", "delay", message, value=loss)


def _target_table(decisions: Decisions, market: MarketTensor) -> Floats:
    """Target weights [T, N] on the bars of a market, NaN where nothing was decided."""
    bars, assets, _ = market.shape
    table = np.full((bars, assets), np.nan)
    for t, weights in enumerate(decisions):
        if weights is not None:
            table[t] = weights
    return table
