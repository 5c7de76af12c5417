"""Rule-based baselines: equal weight, the index, momentum, random weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.random import key
from finrl_pod.types import Floats, Positions, Window


def holds_only_cash(positions: Positions) -> bool:
    """Whether the account has no holdings, as at the first bar of a backtest."""
    return not np.any(positions.weights)


def is_rebalance_bar(window: Window, positions: Positions) -> bool:
    """Whether a monthly strategy trades: at the first bar of a month (UTC), and while it holds only cash.

    Needs a window of two bars.
    """
    months = window.times[-2:].astype("datetime64[M]")
    return holds_only_cash(positions) or bool(months[0] != months[-1])


YEAR = 252
MONTH = 21  # bars


def equal_weights(is_selected: np.ndarray) -> Floats:
    """Equal weights [N] of the selected assets [N] bool; all zero if none is selected."""
    return np.where(is_selected, 1.0 / max(int(is_selected.sum()), 1), 0.0)


@dataclass(frozen=True)
class EqualWeight:
    """Equal weight of every asset with a price, rebalanced monthly, or bought once and held."""

    name: str = "equal_weight"
    rebalance: bool = True
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if not (is_rebalance_bar(window, positions) if self.rebalance else holds_only_cash(positions)):
            return None
        return equal_weights(window.tradable[-1])


@dataclass(frozen=True)
class BuyAndHold:
    """One symbol, bought at the first bar on which it trades, and held."""

    name: str
    feature_names: tuple[str, ...] = ()
    lookback: int = 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        place = window.symbols.index(self.name)
        if not holds_only_cash(positions) or not window.tradable[-1, place]:
            return None
        return np.where(np.arange(len(window.symbols)) == place, 1.0, 0.0)


@dataclass(frozen=True)
class Index:
    """The single asset of an index market (`baselines.index_market`), bought once and held."""

    name: str = "index"
    feature_names: tuple[str, ...] = ()
    lookback: int = 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if len(window.symbols) != 1:
            raise InputError(
                f"the index baseline needs a market of the index only, got {len(window.symbols)} symbols; "
                "build one with index_market"
            )
        return np.ones(1) if holds_only_cash(positions) and window.tradable[-1, 0] else None


@dataclass(frozen=True)
class Momentum:
    """12-1 momentum: equal weight in the top third by return from 252 to 21 bars ago, rebalanced monthly.

    Assets without a price at either bar or at the decision are skipped; ties go to the earlier symbol. Jegadeesh and
    Titman (1993), skipping the last month.
    """

    name: str = "momentum_12_1"
    top: float = 1 / 3
    feature_names: tuple[str, ...] = ()
    lookback: int = YEAR + 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if len(window.close) <= YEAR or not is_rebalance_bar(window, positions):
            return None
        growth = window.close[-1 - MONTH] / window.close[-1 - YEAR]
        growth[~window.tradable[-1]] = np.nan
        priced_count = int(np.isfinite(growth).sum())
        if not priced_count:
            return None
        ranking = np.argsort(-growth, kind="stable")  # NaN sorts last
        is_selected = np.zeros(len(growth), dtype=bool)
        is_selected[ranking[: ceil(priced_count * self.top)]] = True
        return equal_weights(is_selected)


@dataclass(frozen=True)
class RandomWeights:
    """Random long-only weights of the assets with a price (uniform Dirichlet), drawn again each month.

    The draw depends only on the seed and the date of the bar, not on where a backtest starts.
    """

    seed: int = 0
    name: str = "random_weights"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if not is_rebalance_bar(window, positions):
            return None
        day = int(window.times[-1].astype("datetime64[D]").astype(np.int64))
        sample = np.random.default_rng(key(self.seed, abs(day), "random weights")).exponential(size=len(window.symbols))
        sample[~window.tradable[-1]] = 0.0
        return np.asarray(sample / max(sample.sum(), 1e-12), dtype=np.float64)
