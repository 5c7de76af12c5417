"""Records shared between packages. All are immutable: derive new ones with `dataclasses.replace`.

Dimensions: T bars, N assets, F features, P members of a population, E environments per member, G groups of A
environments that share a window (E = G * A), H horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from finrl_pod.prices import PANEL_COLUMNS as PANEL_COLUMNS
from finrl_pod.prices import PRICE_COLUMNS as PRICE_COLUMNS
from finrl_pod.prices import Benchmark as Benchmark
from finrl_pod.prices import Bools as Bools
from finrl_pod.prices import FeatureTable as FeatureTable
from finrl_pod.prices import Floats as Floats
from finrl_pod.prices import Panel as Panel
from finrl_pod.prices import Times as Times

Tensor = torch.Tensor

NOTHING = torch.zeros(())


@dataclass(frozen=True)
class Normaliser:
    """Per-feature standardisation fitted on the training split: (x - mean) / std, clipped to +-clip.

    mean, std: one number per feature, in the order of `feature_names`.
    """

    feature_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    clip: float = 10.0


@dataclass(frozen=True, eq=False)
class MarketTensor:
    """Tensors of a panel for vectorised environments: observations and fill prices of each decision bar.

    close: [T, N] float64, price known at t; forward-filled over gaps and after the end of a ticker (for valuation), 1.0
        before its start.
    fill: [T, N] float64, fill price of the decision of bar t (open of t+1, else close of t+1; close of t for
        fill="same_close"); the forward-filled close where `fillable` is False.
    features: [T, N, F] float32, normalised, 0 where undefined. raw_features: [T, N, F] float32 before normalisation,
        NaN where undefined.
    tradable: [T, N] bool, has a price at t. fillable: [T, N] bool, the decision of t can fill. delisted: [T, N] bool,
        the ticker has no bar after t: holdings are sold at the last close.
    first: first bar at which a tradable asset has all features defined, but for features of tables. steps: decisions
        t < steps have both fill(t) and fill(t+1).
    turbulence: [T] float64 or None, NaN during warm-up.
    fill_volume: [T, N] float64 or None, shares traded in the bar of fill(t); 0 where nothing can fill, inf where
        a delisted ticker is paid out. volatility: [T, N] float64 or None, of the log return of a bar, as known at t.
    half_spread: [T, N] float64 or None, half the quoted spread in the bar of fill(t) as a fraction of the price, the
        last known one where nothing can fill; NaN where it is unknown.
    base: [T, N] float64 or None, weights of the base portfolio of a mandate as known at t, 0 for untradable assets.
    dividends: [T, N] float64 or None, cash per share that is paid between the closes of t and t+1, before the fills of
        t+1, on the holdings after the fills of t; 0 for delisted tickers.
    fitted: first and last training bar, on which the normaliser was fitted; None if it was given.
    cash_rates: rates as in `Panel`.
    """

    times: Times
    symbols: tuple[str, ...]
    close: Tensor
    fill: Tensor
    features: Tensor
    raw_features: Tensor
    tradable: Tensor
    fillable: Tensor
    delisted: Tensor
    feature_names: tuple[str, ...]
    normaliser: Normaliser
    fill_rule: str
    first: int
    steps: int
    turbulence: Tensor | None = None
    fill_volume: Tensor | None = None
    volatility: Tensor | None = None
    half_spread: Tensor | None = None
    base: Tensor | None = None
    dividends: Tensor | None = None
    fitted: tuple[int, int] | None = None
    cash_rates: tuple[tuple[str, float], ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, N, F)."""
        t, n, f = self.features.shape
        return t, n, f


class Account(NamedTuple):
    """Cash [...] in currency and shares [..., N]."""

    cash: Tensor
    shares: Tensor


class Observation(NamedTuple):
    """Observation of a market environment: a row index into the shared feature table, and the accounts.

    bar: [P, G] int64, the decision bar, shared by the A = E // G consecutive accounts of a group.
    account: [P, E, 1 + N] float, cash and holdings at the close as fractions of a scale set by the environment.
    """

    bar: Tensor
    account: Tensor


class EnvStep(NamedTuple):
    """Outcome of a step of E environments for each of P members; [P, E] unless stated.

    observation: the next one, after auto-reset; final_observation: the one before the reset, equal elsewhere.
    reward: float. terminated: bool, the task ended (ruin on a market). truncated: bool, a limit of time was reached.
    Of markets only, elsewhere a single 0: equity: currency, at the close of the reached bar, before a reset. turnover:
    value traded, both sides, over equity, per bar. cost: currency. Of many agents only: idle: see `JointStep`.
    """

    observation: Any
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_observation: Any
    equity: Tensor = NOTHING
    turnover: Tensor = NOTHING
    cost: Tensor = NOTHING
    idle: Tensor = NOTHING


class JointObservation(NamedTuple):
    """What M agents of one market observe.

    own: [P, E, M, S] float, what each agent may use to decide. state: [P, E, C] float, the whole state of the market,
    for critics in training alone.
    """

    own: Tensor
    state: Tensor


class JointStep(NamedTuple):
    """Outcome of a step of a market with M agents.

    observation: the next one, after auto-reset; final_observation: the one before the reset, equal elsewhere.
    reward: [P, E, M] float, an objective in units stated by the environment. terminated, truncated: [P, E, M] bool.
    profit: [P, E, M] float, currency, realised in the step, the noise of prices included; of markets only.
    idle: [P, E, M] bool, agents without a part in the step, as they ended before the others: their rewards are 0, their
    actions are not used, and each such step is terminated; a single 0 if all agents end together.
    """

    observation: JointObservation
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_observation: JointObservation
    profit: Tensor = NOTHING
    idle: Tensor = NOTHING


@dataclass(frozen=True)
class AgentSnapshot:
    """A saved agent: everything needed to run or continue it. weights, optimiser: name -> CPU tensor."""

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
    """A leaderboard row: an agent, its parent and its score on the validation split.

    samples: its age, environment steps since its weights were new. root: first ancestor; an agent that started from new
    weights is its own (empty means the same).
    """

    id: str
    parent: str | None
    generation: int
    slot: int
    samples: int
    score: float
    hyperparameters: Mapping[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)
    root: str = ""


@dataclass(frozen=True, eq=False)
class Window:
    """Past data passed to a strategy; the last row is the decision bar. Arrays are copies.

    close: [t+1, N], NaN where not tradable; open, high, low, volume: [t+1, N] or None, volumes NaN where unknown;
    tradable: [t+1, N] bool; benchmark: [t+1] or None. features: [N, F] raw features of the decision bar if the strategy
    has `feature_names`, else None; [L, N, F] of the last L bars, fewer at the start of the data, if its
    `feature_lookback` is L > 1.
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
    """Positions at the decision bar: weights [N] and cash as fractions of equity, equity in currency."""

    weights: Floats
    cash: float
    equity: float


@dataclass(frozen=True, eq=False)
class BacktestResult:
    """Result of a backtest: the account of a strategy over T bars, marked at the close.

    times: [T]. equity: [T] currency, grown by time-weighted returns if money was paid in or taken out (`balance` has
    the value of the account then). weights: [T, N] after the fills of the bar, fractions of equity.
    turnover: [T], value traded, both sides, over equity, per bar. costs: [T] currency.
    cost_parts: [T] currency by cost model; they add up to `costs`.
    risk_free: [T-1] simple return of cash between marks, or None if there is no cash rate. carry: interest earned less
    borrow fees, in currency, over all bars. dividends: [T] currency received (paid on shorts) before the mark of the
    bar, or None if the prices are adjusted for dividends or have none. paid: [T, N] currency, value of the trades of
    each asset, negative for sales; None if all filled at the fill prices of the market. flows: [T] currency paid in at
    the close of the bar, negative if taken out; None without any.
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
    dividends: Floats | None = None
    paid: Floats | None = None
    flows: Floats | None = None

    @property
    def balance(self) -> Floats:
        """Value of the account [T] in currency, with the money that was paid in or taken out until then."""
        if self.flows is None:
            return self.equity
        growth = self.equity / self.equity[0]
        balance: Floats = growth * (self.equity[0] + np.cumsum(self.flows / growth))
        return balance
