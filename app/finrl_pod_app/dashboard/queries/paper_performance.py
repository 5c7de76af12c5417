"""Performance of the paper account against expectations: shortfall against the modelled cost, and difference
against the replayed backtest. Cached frames are shared; do not modify them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ValidationError

from finrl_pod.errors import RunError, count_text
from finrl_pod.files import read_json
from finrl_pod.paper.journal.reader import file_signature
from finrl_pod.prices import Floats
from finrl_pod_app.dashboard.queries.paper_journal import CACHED_JOURNALS, Journal
from finrl_pod_app.dashboard.queries.paper_state import drawdowns
from finrl_pod_app.paper.backtest_difference import difference_file

BASIS_POINTS = 10_000.0
BENCHMARK = "equal weight of the symbols"
BARS_PER_YEAR = 252
NORMAL_95 = 1.96  # standard errors to either side of a mean
SIZE_LIMITS = (0.0, 1_000.0, 10_000.0, 100_000.0, float("inf"))  # of an order, in dollars
SIZES = ("up to $1,000", "up to $10,000", "up to $100,000", "above $100,000")


@dataclass(frozen=True)
class Slippage:
    """Slippage of all fills against the prices at the decision, in basis points of value; positive is a cost.

    realised includes the move of the market from decision to fill; it averages out over time. error: its standard error
    over sessions. modelled: the cost in the settings, None if unknown. fees: charged by the broker.
    """

    realised: float
    error: float
    modelled: float | None
    fees: float
    fills: int


@lru_cache(maxsize=CACHED_JOURNALS)
def slippage(journal: Journal) -> Slippage:
    """Slippage over all fills except flattens: they have no decision price."""
    sessions = slippage_by_session(journal)
    value = float(sessions.value.sum())
    realised, error = _mean_and_error(sessions)
    fees = float(sessions.fees.sum()) / value * BASIS_POINTS if value else float("nan")
    modelled = journal.config.broker.cost_bps if journal.config else None
    return Slippage(realised, error, modelled, fees, int(sessions.fills.sum()))


def _mean_and_error(sessions: pd.DataFrame) -> tuple[float, float]:
    """Cost in basis points of the value, and its standard error as a ratio of sums over independent sessions."""
    value = float(sessions.value.sum())
    if not value:
        return float("nan"), float("nan")
    mean = float(sessions.cost.sum()) / value
    n = len(sessions)
    squares = float(((sessions.cost - sessions.value * mean) ** 2).sum())
    error = np.sqrt(n / (n - 1) * squares) / value if n > 1 else float("nan")
    return mean * BASIS_POINTS, float(error) * BASIS_POINTS


def slippage_summary(costs: Slippage) -> str:
    """Realised against modelled slippage in one sentence each."""
    error = f" ± {costs.error:.1f}" if np.isfinite(costs.error) else ""
    realised = (
        f"Implementation shortfall of {count_text(costs.fills, 'fill')}: {costs.realised:+.1f}{error} bp against the "
        "prices at the decision, market moves until the fill included"
    )
    if costs.modelled is None:
        return f"{realised}. The modelled cost is not recorded in the journal."
    distance = abs(costs.realised - costs.modelled)
    verdict = "within" if np.isfinite(costs.error) and distance <= 2 * costs.error else "outside"
    return (
        f"{realised}. Modelled: {costs.modelled:+.1f} bp, {verdict} two standard errors. "
        f"Broker fees: {costs.fees:.1f} bp."
    )


@lru_cache(maxsize=CACHED_JOURNALS)
def slippage_by_session(journal: Journal) -> pd.DataFrame:
    """One row per decision: bar, value (traded, at its prices), cost (dollars), fees, fills, bp, cumulative_bp."""
    frame = _decision_fills(journal)
    rows = frame.groupby("bar", sort=True)[["value", "cost", "fee", "count"]].sum().reset_index()
    rows = rows.rename(columns={"fee": "fees", "count": "fills"})
    rows["bp"] = rows.cost / rows.value * BASIS_POINTS
    rows["cumulative_bp"] = rows.cost.cumsum() / rows.value.cumsum() * BASIS_POINTS
    return rows


@lru_cache(maxsize=CACHED_JOURNALS)
def slippage_by(journal: Journal, group: Literal["symbol", "size"]) -> pd.DataFrame:
    """One row per symbol, the highest cost first, or per size of the orders, the smallest first.

    Columns: group, fills, value, cost, bp with its 95% interval (low, high; NaN for a single session), and the modelled
    cost in basis points.
    """
    fills = _decision_fills(journal)
    modelled = slippage(journal).modelled
    rows = []
    for name, frame in fills.groupby(group, observed=True):
        mean, error = _mean_and_error(frame.groupby("bar")[["value", "cost"]].sum())
        sums = frame[["count", "value", "cost"]].sum()
        interval = (mean - NORMAL_95 * error, mean + NORMAL_95 * error)
        rows.append((str(name), int(sums["count"]), sums["value"], sums["cost"], mean, *interval, modelled))
    table = pd.DataFrame(rows, columns=["group", "fills", "value", "cost", "bp", "low", "high", "modelled"])
    if group == "symbol":
        table = table.sort_values(["cost", "group"], ascending=[False, True], ignore_index=True)
    return table


def _decision_fills(journal: Journal) -> pd.DataFrame:
    frame = journal.fills[~journal.fills.bar.str.startswith("flatten")]
    sign = frame.side.map({"buy": 1.0, "sell": -1.0}).astype(float)
    value = frame.quantity * frame.reference_price
    return pd.DataFrame(
        {
            "bar": frame.bar,
            "symbol": frame.symbol,
            "size": pd.cut(value.groupby(frame.client_order_id).transform("sum"), SIZE_LIMITS, labels=SIZES),
            "value": value,
            "cost": sign * frame.quantity * (frame.price - frame.reference_price),
            "fee": frame.fee,
            "count": 1,
        }
    )


@dataclass(frozen=True, eq=False)
class BacktestDifference:
    """Equity of the paper account and of the replayed backtest.

    curve: session, equity, benchmark (`benchmark_equity`), drawdown (0 or negative), backtest (NaN where the replay has
    none), difference (of growth, in basis points).
    end: difference at the last common session. error: annualised standard deviation of the daily differences, in basis
    points. behind: sessions of the account that the replay does not cover. made: time of the replay, empty without one.
    causes: the difference in currency by cause; empty without a replay. parts: one row for each strategy of an account
    of several: name, strategy, equity, backtest, difference.
    """

    curve: pd.DataFrame
    end: float
    error: float
    behind: int
    made: str
    strategy: str
    differences: tuple[str, ...]
    causes: Mapping[str, float] = field(default_factory=dict)
    parts: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def is_available(self) -> bool:
        """Whether a replay exists."""
        return bool(self.made)


def benchmark_equity(journal: Journal) -> Floats:
    """Equity [T] at each session of the account of its first equity held in equal weights of its symbols.

    Rebalanced at every close, without costs and dividends; NaN where the journal has no closes of two sessions.
    """
    sessions = journal.equity.session.astype(str).to_numpy()
    days = journal.benchmark.session.astype(str).str[:10].to_numpy()
    if not len(sessions) or not len(days):
        return np.full(len(sessions), np.nan)
    level = np.concatenate([[1.0], np.cumprod(journal.benchmark.growth.to_numpy(dtype=np.float64))])
    levels = level[np.searchsorted(days, sessions, side="right")]
    equity: Floats = float(journal.equity.equity.iloc[0]) * levels / levels[0]
    return equity


def backtest_difference(journal: Journal) -> BacktestDifference:
    """Equity of the journal with the result of `paper track`. The cached record is shared until a file changes.

    Raises RunError if the result is damaged.
    """
    return _difference(journal, file_signature(difference_file(journal.path)))


@lru_cache(maxsize=CACHED_JOURNALS)
def _difference(journal: Journal, _: object) -> BacktestDifference:
    curve = journal.equity[["session", "equity"]].copy()
    document = _saved_difference(journal.path)
    backtest_by_session = dict(zip(document.sessions, document.backtest, strict=True))
    curve["benchmark"] = benchmark_equity(journal)
    curve["drawdown"] = drawdowns(journal.equity.equity, journal.capital)
    curve["backtest"] = curve.session.map(backtest_by_session).astype(float)
    common_sessions = curve.dropna(subset=["backtest"])
    curve["difference"] = float("nan")
    if len(common_sessions) > 1:
        account, backtest = (common_sessions[name] / common_sessions[name].iloc[0] for name in ("equity", "backtest"))
        curve.loc[common_sessions.index, "difference"] = (account - backtest) * BASIS_POINTS
        daily = (common_sessions.equity.pct_change() - common_sessions.backtest.pct_change()).dropna()
        error = float(daily.std() * BARS_PER_YEAR**0.5 * BASIS_POINTS) if len(daily) > 1 else float("nan")
        end = float(curve.difference.dropna().iloc[-1])
    else:
        error = end = float("nan")
    return BacktestDifference(
        curve=curve,
        end=end,
        error=error,
        behind=len(curve) - len(common_sessions),
        made=document.made,
        strategy=document.strategy,
        differences=document.differences,
        parts=_parts(document.strategies),
        causes=document.attribution,
    )


class SavedStrategy(BaseModel):
    """One strategy in the result of `paper track`."""

    strategy: str
    equity: float
    backtest: float


class SavedDifference(BaseModel):
    """The fields of the result of `paper track` that the page shows; empty before the first replay."""

    made: str = ""
    strategy: str = ""
    sessions: tuple[str, ...] = ()
    backtest: tuple[float | None, ...] = ()
    differences: tuple[str, ...] = ()
    attribution: Mapping[str, float] = {}
    strategies: Mapping[str, SavedStrategy] = {}


def _parts(strategies: Mapping[str, SavedStrategy]) -> pd.DataFrame:
    rows = [{"name": name, **vars(strategy)} for name, strategy in strategies.items()]
    frame = pd.DataFrame(rows, columns=["name", "strategy", "equity", "backtest"])
    frame["difference"] = frame.equity - frame.backtest
    return frame


def _saved_difference(journal: Path) -> SavedDifference:
    file = difference_file(journal)
    if not file.is_file():
        return SavedDifference()
    values = read_json(file)
    try:
        document = SavedDifference.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise RunError(f"{file} is damaged: {field} is invalid; run finrl-pod paper track again") from None
    if len(document.sessions) != len(document.backtest):
        raise RunError(f"{file} is damaged: sessions and values differ in number; run finrl-pod paper track again")
    return document
