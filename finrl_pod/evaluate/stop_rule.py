"""A stop rule for live trading: the band of the active return of an account if the backtest still describes it.

The active return is the log growth of an account minus the log growth of its base. Histories of one year are drawn from
the active returns of the backtest by the stationary bootstrap (Politis and Romano 1994). The lower edge of the band
after D bars is a quantile of their sums over D bars; its level is chosen so that the stated share of histories ever
leaves it, not so many at each bar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.evaluate.intervals import MIN_BARS, block_length, resample_bars
from finrl_pod.types import Floats

LEVEL = 0.05  # share of histories that leave the band within HORIZON bars
HORIZON = 252  # bars
DRAWS = 2000  # histories


@dataclass(frozen=True)
class ActiveBand:
    """Lower edge of active log returns after 1 to D bars. level: share of histories below it at some bar."""

    level: float
    lower: tuple[float, ...]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ActiveBand:
        """The band of `plain`."""
        return cls(float(values["level"]), tuple(float(edge) for edge in values["lower"]))

    def to_dict(self) -> dict[str, float | list[float]]:
        """Plain JSON values."""
        return {"level": self.level, "lower": [float(f"{edge:.6g}") for edge in self.lower]}

    def edge(self, bars: int) -> float:
        """Lower edge after a number of bars of at least 1; beyond the last edge, the last one."""
        return self.lower[min(bars, len(self.lower)) - 1]


def active_band(
    account: ArrayLike, base: ArrayLike, seed: int = 0, *, level: float = LEVEL, horizon: int = HORIZON,
    draws: int = DRAWS,
) -> ActiveBand | None:  # fmt: skip
    """The band of the equity [T] of an account over its base [T] in a backtest.

    None for fewer than `MIN_BARS` returns, an equity that is not above 0, and an account that never left its base.
    """
    account_equity = np.asarray(account, dtype=np.float64)
    base_equity = np.asarray(base, dtype=np.float64)
    if len(account_equity) <= MIN_BARS or min(account_equity.min(), base_equity.min()) <= 0:
        return None
    active: Floats = np.diff(np.log(account_equity) - np.log(base_equity))
    if np.ptp(active) == 0:
        return None
    rng = np.random.default_rng(seed)
    sums = _drawn_sums(active, horizon, draws, rng)
    ranks = sums.argsort(0).argsort(0)  # [draws, D] from 0, the lowest
    rank = int(np.sort(ranks.min(1))[math.floor(level * draws)])
    lower = np.sort(sums, 0)[rank]
    return ActiveBand(level, tuple(lower.tolist()))


def active_return(account: Sequence[float], base: Sequence[float]) -> tuple[int, float]:
    """(bars, log growth of an account minus its base) over the marks, at most the last `HORIZON` bars."""
    bars = min(len(account) - 1, HORIZON)
    return bars, math.log(account[-1] / account[-1 - bars]) - math.log(base[-1] / base[-1 - bars])


def _drawn_sums(active: Floats, horizon: int, draws: int, rng: np.random.Generator) -> Floats:
    """Sums [draws, D] over the first 1 to D bars of resampled histories."""
    rows = math.ceil(draws * horizon / len(active))  # resampled series end to end, cut into histories
    bars = resample_bars(len(active), block_length(active), rows, rng).reshape(-1)[: draws * horizon]
    sums: Floats = active[bars].reshape(draws, horizon).cumsum(1)
    return sums
