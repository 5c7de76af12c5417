"""What trading cost beyond the decision's prices, beside what was modelled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from finrl_pod_app.dashboard.queries.paper_journal import KEPT, Journal

BASIS_POINTS = 10_000.0


@dataclass(frozen=True)
class Slippage:
    """realised, error: basis points of value, positive is against us; error is one standard error over sessions.

    The realised figure holds the market's move from the decision to the fill, which averages out over time: the error
    says how far. modelled: what the settings charge for a trade. fees: of the broker, in basis points.
    """

    realised: float
    error: float
    modelled: float | None
    fees: float
    fills: int


def slippage(journal: Journal) -> Slippage:
    """Over all fills of decisions; what a flatten sold has no decision's price."""
    sessions = by_session(journal)
    value, moved = float(sessions.value.sum()), float(sessions.moved.sum())
    realised = moved / value * BASIS_POINTS if value else float("nan")
    error = float("nan")
    if len(sessions) > 1 and value:
        # Of a ratio of sums, sessions being independent of each other.
        rest = (sessions.moved - sessions.value * moved / value).to_numpy()
        n = len(rest)
        error = float(np.sqrt(n / (n - 1) * np.sum(rest**2)) / value * BASIS_POINTS)
    fees = float(sessions.fees.sum()) / value * BASIS_POINTS if value else float("nan")
    modelled = journal.config.broker.cost_bps if journal.config else None
    return Slippage(realised, error, modelled, fees, int(sessions.fills.sum()))


def words(costs: Slippage) -> str:
    """What the figures say, with their error."""
    error = f" ± {costs.error:.1f}" if np.isfinite(costs.error) else ""
    sentence = (
        f"{costs.fills:,} fills cost {costs.realised:+.1f}{error} bp of the value at the decisions' prices "
        "(the market's move until the fill included)"
    )
    if costs.modelled is None:
        return f"{sentence}. What was modelled is not in the journal."
    apart = abs(costs.realised - costs.modelled)
    verdict = "within" if np.isfinite(costs.error) and apart <= 2 * costs.error else "beyond"
    return (
        f"{sentence}; {costs.modelled:+.1f} bp were modelled, which is {verdict} two standard errors. "
        f"The broker's own fees were {costs.fees:.1f} bp."
    )


@lru_cache(maxsize=KEPT)
def by_session(journal: Journal) -> pd.DataFrame:
    """A row a decision: bar, value (traded, at its prices), moved (dollars against us), fees, fills, and basis points:
    of the session (bp) and of all up to it (so_far). All who ask get the same frame, which is not to be changed."""
    frame = _of_decisions(journal)
    rows = frame.groupby("bar", sort=True)[["value", "moved", "fee", "one"]].sum().reset_index()
    rows = rows.rename(columns={"fee": "fees", "one": "fills"})
    rows["bp"] = rows.moved / rows.value * BASIS_POINTS
    rows["so_far"] = rows.moved.cumsum() / rows.value.cumsum() * BASIS_POINTS
    return rows


def by_symbol(journal: Journal) -> pd.DataFrame:
    """A row a symbol, the dearest first: symbol, fills, value, moved, bp."""
    frame = _of_decisions(journal)
    rows = frame.groupby("symbol")[["one", "value", "moved"]].sum().reset_index().rename(columns={"one": "fills"})
    rows["bp"] = rows.moved / rows.value * BASIS_POINTS
    return rows.sort_values(["moved", "symbol"], ascending=[False, True]).reset_index(drop=True)


def _of_decisions(journal: Journal) -> pd.DataFrame:
    frame = journal.fills[~journal.fills.bar.str.startswith("flatten")]
    sign = frame.side.map({"buy": 1.0, "sell": -1.0}).astype(float)
    return pd.DataFrame(
        {
            "bar": frame.bar,
            "symbol": frame.symbol,
            "value": frame.quantity * frame.reference_price,
            "moved": sign * frame.quantity * (frame.price - frame.reference_price),
            "fee": frame.fee,
            "one": 1,
        }
    )
