"""The object of report.json: what a run was, what it chose, what came out. Plain values only, NaN as null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod import files
from finrl_pod.files import to_plain
from finrl_pod.settings.run import EnvironmentConfig, RunConfig
from finrl_pod.types import BacktestResult, Floats, Panel, Score, Times
from finrl_pod_app.report.sheet import tear_sheet


@dataclass(frozen=True)
class Champion:
    """The ensemble that was tested. lineage: for each member its ancestors, the parent first."""

    id: str
    algorithm: str
    members: tuple[str, ...]
    lineage: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Verdict:
    """Whether the champion is promoted. reasons: one sentence each."""

    promoted: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Timing:
    """What a run took: environment steps, and seconds of the wall clock."""

    samples: int
    train_seconds: float
    samples_per_second: float
    total_seconds: float


def build_document(
    *,
    config: RunConfig,
    panel: Panel,
    splits: Mapping[str, Sequence[str]],
    results: Mapping[str, BacktestResult],
    versions: Mapping[str, str],
    champion: Champion | None = None,
    leaderboard: Sequence[Score] = (),
    verdict: Verdict | None = None,
    timing: Timing | None = None,
    cost_curve: Sequence[Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """The report's object from its pieces; a plain backtest leaves out champion, leaderboard, verdict and timing.

    splits: first and last date of each, as ISO text; "test" must be among them. results: of the test split, by name
    of the strategy. cost_curve: of the strategy that the report is about, from `sensitivity.cost_curve`.
    """
    document = {
        "data": {
            "name": panel.name,
            "sha256": panel.sha256,
            "symbols": panel.symbols,
            "start": _date(panel.times[0]),
            "end": _date(panel.times[-1]),
            "bars": len(panel.times),
            "columns": panel.columns,
            "adjusted": panel.adjusted,
            "source": panel.source,
            "flaws": panel.flaws,
            "price_only_index": panel.benchmark is not None and panel.benchmark.price_only,
        },
        "splits": {**splits, "embargo": config.splits.embargo},
        "rules": rule_sentences(config.environment, panel),
        "champion": None if champion is None else vars(champion),
        "leaderboard": [_row(score) for score in leaderboard],
        "test": {
            "strategies": {name: result.metrics for name, result in results.items()},
            "yearly": {name: yearly_returns(result.times, result.equity) for name, result in results.items()},
            "tearsheet": tear_sheet(results),
            "cost_curve": cost_curve,
            "cost_bps": config.environment.cost_bps,
        },
        "verdict": None if verdict is None else vars(verdict),
        "timing": None if timing is None else vars(timing),
        "seed": config.seed,
        "versions": versions,
        "config_sha256": config.sha256,
    }
    plain: dict[str, Any] = to_plain(document)
    return plain


def rule_sentences(rules: EnvironmentConfig, panel: Panel) -> list[str]:
    """The market's rules in words, and a warning where a setting flatters the result or bends the prices."""
    sentences = [f"Every trade costs {rules.cost_bps:g} basis points of its value.", *cost_sentences(rules, panel)]
    if rules.fill == "same_close":
        sentences.append(
            "Warning: decisions filled at the very close that they were made on (fill = same_close), which nobody can "
            "trade; the results flatter every strategy that reacts to the last bar."
        )
    else:
        price = "open" if panel.open is not None else "close, because the data has no opening prices"
        bar = "the next bar's" if rules.delay == 1 else f"the {ordinal(rules.delay)} bar's"
        sentences.append(f"A decision sees closing prices and fills at {bar} {price}.")
    if not rules.whole_shares:
        sentences.append("Shares are bought in fractions.")
    elif panel.adjusted:
        sentences.append(
            "Warning: whole shares on adjusted prices; past prices are scaled down for later splits and dividends, so "
            "the rounding is not the one that a trader had."
        )
    else:
        sentences.append("Shares are bought whole.")
    if rules.order == "sequential":
        sentences.append("When cash is short, buys fill one after the other, the largest action first.")
    if rules.short or rules.leverage > 1:
        short = "may" if rules.short else "may not"
        sentences.append(f"Holdings may reach {rules.leverage:g} times the equity; short positions {short} be taken.")
    if rules.turbulence_limit > 0:
        sentences.append(f"Agents sell everything while turbulence is above {rules.turbulence_limit:g}.")
    if rules.short:
        fee = f"{100 * rules.borrow_fee:g}% a year" if rules.borrow_fee else "nothing"
        sentences.append(f"Borrowing the shares of a short position costs {fee}.")
    if np.isfinite(panel.close[-1]).sum() < len(panel.symbols):
        loss = f", less {-100 * rules.exit_return:g}%" if rules.exit_return else ""
        sentences.append(f"A ticker that ends is paid out at its last close{loss}.")
    if rules.cash_rates:
        dates = ", ".join(f"{100 * rate:g}% a year from {day}" for day, rate in rules.cash_rates)
        sentences.append(f"Cash earns {dates}; Sharpe and Sortino ratios are in excess of it.")
    else:
        sentences.append("Cash earns nothing.")
    if panel.benchmark is not None and panel.benchmark.price_only:
        sentences.append(
            f"The index is {panel.benchmark.name} by its price alone, without dividends; the stocks' prices "
            f"{'include' if panel.adjusted else 'leave out'} theirs."
        )
    return sentences


def cost_sentences(rules: EnvironmentConfig, panel: Panel) -> list[str]:
    """The costs beyond the proportional one, in words."""
    sentences = []
    if rules.half_spread_bps:
        sentences.append(f"Every fill is {rules.half_spread_bps:g} basis points worse than its price: half the spread.")
    if rules.per_share or rules.per_share_minimum:
        sentences.append(
            f"An order costs {rules.per_share:g} a share, {rules.per_share_minimum:g} at least; the index pays none."
        )
    if rules.per_share and panel.adjusted:
        sentences.append(
            "Warning: costs a share on adjusted prices; past prices are scaled down for later splits and dividends, so "
            "more shares are counted than were traded."
        )
    if rules.impact:
        sentences.append(
            f"An order moves the price by {rules.impact:g} times a bar's volatility times the square root of its "
            "share of the bar's volume; the index does not pay it."
        )
    if rules.participation:
        sentences.append(
            f"At most {100 * rules.participation:g}% of a bar's volume fills; the rest of an order lapses."
        )
    return sentences


def ordinal(delay: int) -> str:
    """2 -> "2nd", the bar after a decision."""
    ending = {2: "nd", 3: "rd"}.get(delay % 10 if delay % 100 not in (11, 12, 13) else 0, "th")
    return f"{delay}{'st' if delay % 10 == 1 and delay % 100 != 11 else ending}"


def yearly_returns(times: Times, equity: Floats) -> dict[str, float]:
    """Simple return of each calendar year, its last mark over the last of the year before (at first: the first mark).

    times: [T]; equity: [T] currency.
    """
    years = times.astype("datetime64[Y]").astype(int) + 1970
    lasts = np.append(np.flatnonzero(np.diff(years)), len(years) - 1)
    marks = np.concatenate([equity[:1], equity[lasts]])
    with np.errstate(divide="ignore", invalid="ignore"):
        returns = marks[1:] / marks[:-1] - 1
    return {str(years[i]): float(value) for i, value in zip(lasts, returns, strict=True)}


def write_json(path: Path, document: Mapping[str, Any]) -> Path:
    """Write a report's object as JSON, keys sorted, NaN as null. Raises RunError."""
    return files.write_json(path, to_plain(document), indent=2)


def _row(score: Score) -> dict[str, Any]:
    return {**vars(score), "hyperparameters": dict(score.hyperparameters), "metrics": dict(score.metrics)}


def _date(time: np.datetime64) -> str:
    return str(time.astype("datetime64[D]"))
