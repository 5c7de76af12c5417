"""Baselines of plain rules: equal weight, the index, momentum, random weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.random import key
from finrl_pod.types import Floats, Positions, Window


def new_month(window: Window) -> bool:
    """The decision bar is the first bar of its calendar month (UTC) in the data. Needs two rows."""
    months = window.times[-2:].astype("datetime64[M]")
    return len(months) == 2 and bool(months[0] != months[1])


def holds_nothing(positions: Positions) -> bool:
    """The account is all cash, as at the first bar of a backtest."""
    return not np.any(positions.weights)


def monthly(window: Window, positions: Positions) -> bool:
    """A monthly strategy acts at the first bar of a month, and whenever it holds nothing yet."""
    return holds_nothing(positions) or new_month(window)


YEAR, MONTH = 252, 21  # bars


def equal_weights(chosen: np.ndarray) -> Floats:
    """[N] bool -> [N] weights, the same for each chosen asset; all zero where none is chosen."""
    return np.where(chosen, 1.0 / max(int(chosen.sum()), 1), 0.0)


@dataclass(frozen=True)
class EqualWeight:
    """The same weight for every asset with a price, restored monthly, or bought once and held."""

    name: str = "equal_weight"
    rebalance: bool = True
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if not (monthly(window, positions) if self.rebalance else holds_nothing(positions)):
            return None
        return equal_weights(window.tradable[-1])


@dataclass(frozen=True)
class Index:
    """Everything into the one asset of an index market (`index_market`), bought once and held."""

    name: str = "index"
    feature_names: tuple[str, ...] = ()
    lookback: int = 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if len(window.symbols) != 1:
            raise InputError(
                f"the index baseline runs on a market of the index alone, got {len(window.symbols)} symbols; "
                "build one with index_market"
            )
        return np.ones(1) if holds_nothing(positions) and window.tradable[-1, 0] else None


@dataclass(frozen=True)
class Momentum:
    """12-1 momentum: equal weight in the third of the assets that rose most from 252 to 21 bars ago, chosen monthly.

    Assets without a price at either bar or at the decision are skipped; ties go to the earlier symbol. Jegadeesh and
    Titman (1993), with the last month left out.
    """

    name: str = "momentum_12_1"
    top: float = 1 / 3
    feature_names: tuple[str, ...] = ()
    lookback: int = YEAR + 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if len(window.close) <= YEAR or not monthly(window, positions):
            return None
        growth = window.close[-1 - MONTH] / window.close[-1 - YEAR]
        growth[~window.tradable[-1]] = np.nan
        known = int(np.isfinite(growth).sum())
        if not known:
            return None
        ranked = np.argsort(-growth, kind="stable")  # NaN sorts last
        chosen = np.zeros(len(growth), dtype=bool)
        chosen[ranked[: ceil(known * self.top)]] = True
        return equal_weights(chosen)


@dataclass(frozen=True)
class RandomWeights:
    """Weights drawn evenly over all long-only portfolios of the assets with a price (Dirichlet), anew each month.

    The draw of a month depends on the seed and the bar's date alone, not on where a backtest starts.
    """

    seed: int = 0
    name: str = "random_weights"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if not monthly(window, positions):
            return None
        day = int(window.times[-1].astype("datetime64[D]").astype(np.int64))
        drawn = np.random.default_rng(key(self.seed, abs(day), "random weights")).exponential(size=len(window.symbols))
        drawn[~window.tradable[-1]] = 0.0
        return np.asarray(drawn / max(drawn.sum(), 1e-12), dtype=np.float64)
