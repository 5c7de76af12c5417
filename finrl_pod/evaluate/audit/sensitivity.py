"""How much of a result hangs on costs and on speed: the same decisions at other costs, and carried out later."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline
from finrl_pod.evaluate.metrics import BARS_PER_YEAR, bars_per_year
from finrl_pod.evaluate.variations import Job, RecordingStrategy, replay
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import Floats, MarketTensor

CHECK = "sensitivity"
COSTS = (0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)  # basis points a side
MOST_COST = 9_999.0  # the whole price, nearly
DELAYS = (0, 1, 2, 3)  # further bars between a decision and its fill
Decisions = Sequence[Floats | None]  # [N] weights of each bar in order, None: leave the account alone


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """growth: log growth a year of the strategy, by cost and by delay. reference: of the yardstick at the same cost.

    break_even: cost in basis points a side at which its growth falls to the reference's; 0 where it never was above,
    infinite where even the highest cost of `COSTS` leaves it above.
    """

    costs: tuple[float, ...]
    growth: tuple[float, ...]
    reference: tuple[float, ...]
    delays: tuple[int, ...]
    delayed: tuple[float, ...]
    break_even: float


def sensitivity(
    decisions: Decisions,
    yardstick: Decisions,
    market: MarketTensor,
    first: int,
    last: int,
    rules: ExecutionRules,
    cash: float,
    costs: Sequence[float] = COSTS,
    delays: Sequence[int] = DELAYS,
) -> Sensitivity:
    """Replay the decisions of bars first to last - 1, and those of the yardstick, under other costs and delays.

    A late account stays in cash until the first decision has come through.
    """
    made = (decisions, yardstick, *([*[None] * delay, *decisions][: last - first] for delay in delays))
    tables = torch.from_numpy(np.stack([_table(one, market, first) for one in made]))
    terms = [dataclasses.replace(rules, cost_rate=cost / 1e4) for cost in costs]
    jobs = [Job(which, first, last, term) for which in (0, 1) for term in terms]
    jobs += [Job(2 + i, first, last, rules) for i in range(len(delays))]
    periods = bars_per_year(market.times)
    grown = [log_growth(equity, periods) for equity in replay(market, tables, jobs, cash).equity]
    own, reference, late = grown[: len(costs)], grown[len(costs) : 2 * len(costs)], grown[2 * len(costs) :]
    return Sensitivity(
        tuple(costs), tuple(own), tuple(reference), tuple(delays), tuple(late), break_even(costs, own, reference)
    )


def break_even_of(
    own: RecordingStrategy,
    yardstick: RecordingStrategy,
    market: MarketTensor,
    first: int,
    last: int,
    rules: ExecutionRules,
    cash: float,
    *,
    beyond: float = 0.0,
) -> float:
    """The cost in basis points at which what one strategy decided grows no more than what the yardstick did.

    beyond: a cost up to which is tried at least, where the usual ones end before.
    """
    terms = (market, first, last, rules, cash)
    costs = sorted({*COSTS, min(beyond, MOST_COST)})
    return sensitivity(own.decisions, yardstick.decisions, *terms, costs=costs, delays=()).break_even


def _table(decisions: Decisions, market: MarketTensor, first: int) -> Floats:
    """[T, N] on the bars of a market, NaN where nothing was decided."""
    bars, assets, _ = market.shape
    table = np.full((bars, assets), np.nan)
    for t, weights in enumerate(decisions, first):
        if weights is not None:
            table[t] = weights
    return table


def break_even(costs: Sequence[float], own: Sequence[float], reference: Sequence[float]) -> float:
    """The cost at which `own` falls to `reference`, linear between the costs that were tried (ascending)."""
    lead = np.asarray(own) - np.asarray(reference)
    if lead[0] <= 0:
        return 0.0
    below = np.flatnonzero(lead <= 0)
    if not len(below):
        return float("inf")
    i = int(below[0])
    share = lead[i - 1] / (lead[i - 1] - lead[i])
    return float(costs[i - 1] + share * (costs[i] - costs[i - 1]))


def log_growth(equity: Floats, periods_per_year: float = BARS_PER_YEAR) -> float:
    """Log growth a year; minus infinity after ruin."""
    if equity[-1] <= 0:
        return float("-inf")
    return float(np.log(equity[-1] / equity[0]) / (len(equity) - 1) * periods_per_year)


def sensitivity_findings(pipeline: Pipeline, of: Sensitivity, yardstick: str, cost: float) -> list[Finding]:
    """In words: the break-even cost, and what one bar of delay takes. cost: basis points that are charged."""
    whole = pipeline.name
    if whole == yardstick:
        worth = float(np.interp(cost, of.costs, of.growth) - np.interp(2 * cost, of.costs, of.growth))
        text = f"Twice the costs take {worth:.2%} a year from {whole}, which is the yardstick itself."
        return [Finding(CHECK, "pass", "costs", text, value=worth), _delay(of)]
    lead = float(np.interp(cost, of.costs, np.asarray(of.growth) - np.asarray(of.reference)))
    if lead <= 0:
        text = f"{whole} does not grow faster than {yardstick} at {cost:g} basis points: there is no lead to lose."
        return [Finding(CHECK, "warn", "costs", text, value=of.break_even), _delay(of)]
    shown = f"{of.break_even:.1f}" if np.isfinite(of.break_even) else f"more than {of.costs[-1]:g}"
    text = f"{whole} grows {lead:.2%} a year faster than {yardstick}; the lead is gone at {shown} basis points a side."
    status = "pass" if of.break_even >= 2 * cost else "warn"
    return [Finding(CHECK, status, "costs", text, value=_finite(of.break_even, of)), _delay(of)]  # type: ignore[arg-type]


def _delay(of: Sensitivity) -> Finding:
    taken = of.delayed[0] - of.delayed[1]
    text = f"One bar of delay takes {taken:.2%} a year from a growth of {of.delayed[0]:.2%}."
    return Finding(CHECK, "warn" if of.delayed[0] > 0 >= of.delayed[1] else "pass", "delay", text, value=taken)


def _finite(value: float, of: Sensitivity) -> float:
    return value if np.isfinite(value) else of.costs[-1]
