"""The records that cross room borders. All are frozen: derive a new one, never change one.

Letters: T bars, N assets, F features, P members of a population, E environments a member, G groups of environments that
share a window (E = G * A accounts), H horizon.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Times = NDArray[np.datetime64]
Tensor = torch.Tensor

PRICE_COLUMNS = ("open", "high", "low", "close", "volume")


@dataclass(frozen=True, eq=False)
class Benchmark:
    """An index that is not tradable in the panel but serves as a yardstick.

    close: [T] float64, same bars as the panel. price_only: True when it leaves dividends out.
    """

    name: str
    close: Floats
    price_only: bool


@dataclass(frozen=True, eq=False)
class Panel:
    """Prices of N symbols over T bars.

    times: [T] datetime64[ns], UTC, strictly increasing; a daily bar carries its session's date at 00:00.
    close, open, high, low, volume: [T, N] float64, each present or absent (None) as a whole; NaN where `tradable` is
    False. Prices in the quote currency, volume in shares.
    tradable: [T, N] bool; False before a ticker starts, after it ended, and on missing bars.
    adjusted: prices are adjusted for splits and dividends. flaws: known faults of the data, one sentence each.
    """

    times: Times
    symbols: tuple[str, ...]
    close: Floats
    tradable: Bools
    open: Floats | None = None
    high: Floats | None = None
    low: Floats | None = None
    volume: Floats | None = None
    benchmark: Benchmark | None = None
    adjusted: bool = True
    bar: str = "1d"
    name: str = ""
    source: str = ""
    flaws: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The price columns that are present, in the order of `PRICE_COLUMNS`."""
        return tuple(c for c in PRICE_COLUMNS if getattr(self, c) is not None)

    @property
    def sha256(self) -> str:
        """Hash of every number and name in the panel; equal panels have equal hashes on every machine."""
        digest = hashlib.sha256()
        digest.update(repr((self.symbols, self.bar, self.adjusted, self.columns)).encode())
        digest.update(self.times.astype("datetime64[ns]").astype("<i8").tobytes())
        for column in self.columns:
            digest.update(np.ascontiguousarray(getattr(self, column), dtype="<f8").tobytes())
        digest.update(np.packbits(self.tradable).tobytes())
        if self.benchmark is not None:
            digest.update(self.benchmark.name.encode())
            digest.update(np.ascontiguousarray(self.benchmark.close, dtype="<f8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Normaliser:
    """Per-feature shift and scale, fitted on the training split alone: (x - mean) / std, clipped to +-clip.

    mean, std: one number a feature, in the order of `feature_names`.
    """

    feature_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    clip: float = 10.0


@dataclass(frozen=True, eq=False)
class MarketTensor:
    """A panel made ready for vectorised environments: what a decision at bar t sees, and what it fills at.

    close: [T, N] float64, the price known at t; the last known close is carried on over gaps and after a ticker's
        end (for valuation), and 1.0 stands before its start.
    fill: [T, N] float64, the price at which the decision of bar t fills (open of t+1, else close of t+1; close of t
        for fill="same_close"); where `fillable` is False the carried close stands.
    features: [T, N, F] float32, normalised, finite (0 where undefined). raw_features: the same before normalising,
        NaN where undefined.
    tradable: [T, N] bool, has a price at t. fillable: [T, N] bool, the decision of t can trade. ended: [T, N] bool,
        the ticker has no bar after t: holdings are sold at the last close.
    first: first bar at which every feature of some tradable asset is defined. steps: decisions t < steps have both
        fill(t) and fill(t+1).
    turbulence: [T] float64 or None, NaN during warm-up.
    fill_volume: [T, N] float64 or None, shares traded in the bar of fill(t); 0 where nothing can fill, infinite where
        an ended ticker is paid out. volatility: [T, N] float64 or None, of one bar's log return, as known at t.
    """

    times: Times
    symbols: tuple[str, ...]
    close: Tensor
    fill: Tensor
    features: Tensor
    raw_features: Tensor
    tradable: Tensor
    fillable: Tensor
    ended: Tensor
    feature_names: tuple[str, ...]
    normaliser: Normaliser
    fill_rule: str
    first: int
    steps: int
    turbulence: Tensor | None = None
    fill_volume: Tensor | None = None
    volatility: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, N, F)."""
        t, n, f = self.features.shape
        return t, n, f


class Account(NamedTuple):
    """cash [...]; shares [..., N]."""

    cash: Tensor
    shares: Tensor


class Observation(NamedTuple):
    """What a policy sees of a market: a row of the shared table, and its own account.

    day: [P, G] int64, the decision bar, shared by the A = E // G consecutive accounts of a group.
    account: [P, E, 1 + N] float, cash and holdings at the bar's close as shares of a scale the environment names.
    """

    day: Tensor
    account: Tensor


class EnvStep(NamedTuple):
    """One step of E environments for each of P members. All [P, E] unless said.

    observation: the next one (after auto-reset); final_observation: the one before the reset, equal elsewhere.
    reward: float. terminated: ruin. truncated: end of the window. equity: currency, at the closing prices of the
    reached bar, before a reset. turnover: traded value / equity, one-sided sum of buys and sells. cost: currency.
    """

    observation: Any
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_observation: Any
    equity: Tensor
    turnover: Tensor
    cost: Tensor


@dataclass(frozen=True)
class AgentSnapshot:
    """Everything needed to run or continue an agent. `weights` and `optimiser`: names to CPU tensors."""

    id: str
    parent: str | None
    spec: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor]
    normaliser: Normaliser
    hyperparameters: Mapping[str, float]
    samples: int
    data_sha256: str
    seed: int
    version: str


@dataclass(frozen=True)
class Score:
    """One row of a leaderboard: who, from whom, how good on the validation split."""

    id: str
    parent: str | None
    generation: int
    slot: int
    samples: int
    score: float
    hyperparameters: Mapping[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Window:
    """The past, as handed to a strategy: copies of everything known at the decision bar, which is the last row.

    close: [t+1, N] (NaN where not tradable); open, high, low, volume: the same or None; tradable: [t+1, N];
    benchmark: [t+1] or None. features: [N, F] raw features of the decision bar for strategies that name
    `feature_names`, else None.
    """

    times: Times
    symbols: tuple[str, ...]
    close: Floats
    tradable: Bools
    open: Floats | None = None
    high: Floats | None = None
    low: Floats | None = None
    volume: Floats | None = None
    benchmark: Floats | None = None
    features: Floats | None = None


@dataclass(frozen=True, eq=False)
class Positions:
    """What is held at the decision bar: weights [N] of equity, cash weight, equity in currency."""

    weights: Floats
    cash: float
    equity: float


@dataclass(frozen=True, eq=False)
class BacktestResult:
    """A strategy's account over T bars, marked at the close.

    times: [T]. equity: [T] currency. weights: [T, N] held after the bar's fill, shares of equity.
    turnover: [T], sum of |traded value| / equity of the fills of that bar. costs: [T] currency.
    cost_parts: [T] currency by the name of a cost model; they add up to `costs`.
    risk_free: [T-1] simple return of cash from one mark to the next, or None where cash earns nothing. carry: currency
    that cash earned less what shorts paid, over all bars.
    """

    name: str
    times: Times
    symbols: tuple[str, ...]
    equity: Floats
    weights: Floats
    turnover: Floats
    costs: Floats
    metrics: Mapping[str, float]
    cost_parts: Mapping[str, Floats] = field(default_factory=dict)
    risk_free: Floats | None = None
    carry: float = 0.0
