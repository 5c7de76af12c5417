"""A mandate on one account: bars of windows instead of the tables of a market, for backtests and the paper daemon.

`MandateAccount` turns scores into target weights and keeps the virtual holdings. `BasePortfolio` is the strategy of an
agent that never tilts: champions are compared with it. `DecisionRecorder` records scores, and desired weights before
limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypedDict, cast, runtime_checkable

import numpy as np
import torch

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.market.execution import weights_error
from finrl_pod.market.mandate import (
    LARGEST_SCORE,
    RISK_BARS,
    MandateBar,
    VirtualHoldings,
    bar_returns,
    decide,
    decision_bars,
    desired_weights,
    group_members,
    initial_budget,
    needs_returns,
    tilted,
)
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import MandateConfig
from finrl_pod.types import Floats, Positions, Tensor, Times, Window
from finrl_pod_strategies.base_portfolios import base_at, base_lookback
from finrl_pod_strategies.score_parts import ScoredDecision

MIN_LOOKBACK = 12  # bars: virtual holdings drift over gaps of up to ten bars between two calls
Combine = Callable[[Floats], Floats]


class DesiredTilt(NamedTuple):
    """Desired active weights [K, N] of an agent at K bars, before limits and slow trading; NaN outside the base.

    allowed: [K], active share of desired weights if half of the base is tilted up and half down as far as the mandate
    lets.
    """

    times: Times
    weights: Floats
    allowed: Floats


class DesiredTilts(NamedTuple):
    """Desired tilts of an agent in a period. weights: [T, N], NaN where there are none. allowed: mean over the bars."""

    weights: Floats
    allowed: float


class AccountState(TypedDict):
    """Virtual holdings after a decision as plain JSON values: ISO time, weights by symbol, and turnover budget."""

    time: str
    weights: dict[str, float]
    budget: float | None


def unlimited_weights(
    scores: Tensor, bar: MandateBar, held_weights: Tensor, config: MandateConfig, leverage: float
) -> tuple[Tensor, Tensor]:
    """Tilted base weights [.., M, N] without limits on weights and risk, and those [.., 1, N] of scores of zero."""
    without_limits = replace(config, max_weight=1.0, max_group_weight=1.0)
    all_scores = torch.cat([scores, torch.zeros_like(scores[..., :1, :])], -2)
    weights = tilted(all_scores, bar, held_weights, without_limits, leverage)
    return weights[..., :-1, :], weights[..., -1:, :]


def active_weights(weights: Floats, base: Floats) -> Floats:
    """Weights [.., N] less base weights [.., N]; NaN outside the base."""
    active: Floats = np.where(base > 0, weights - base, np.nan)
    return active


def allowed_shares(
    bar: MandateBar, held_weights: Tensor, config: MandateConfig, leverage: float, bars_per_year: float
) -> Tensor:
    """Active shares [..] of desired weights that tilt half of the base up and half down, within all limits.

    The base of the bar is [N], or [.., 1, N].
    """
    base = bar.base if bar.base.dim() > 1 else bar.base.unsqueeze(0)
    ranks = base.argsort(dim=-1, stable=True, descending=True).argsort(-1)
    signs = torch.where((ranks % 4 == 0) | (ranks % 4 == 3), 1.0, -1.0)  # largest first, + - - + and again
    scores = torch.cat([LARGEST_SCORE * signs.to(base.dtype), torch.zeros_like(base)], -2)
    weights = desired_weights(scores, bar, held_weights, config, leverage, bars_per_year)
    return (weights[..., 0, :] - weights[..., 1, :]).abs().sum(-1) / 2


class MandateAccount:
    """Target weights of one account under a mandate.

    lookback: bars of the windows that it needs, None for all.
    """

    def __init__(self, config: MandateConfig, leverage: float) -> None:
        self.config = config
        self.leverage = leverage
        risk = RISK_BARS + 1 if needs_returns(config) else 1
        base = base_lookback(config.base)
        self.lookback = None if base is None else max(base, risk, MIN_LOOKBACK)
        self._last_tilt: Callable[[], DesiredTilt] | None = None  # of the last decision
        self._virtual_holdings: VirtualHoldings | None = None
        self._time: np.datetime64 | None = None
        self._symbols: tuple[str, ...] = ()

    def target_weights(self, scores: Tensor, combine: Combine, window: Window, positions: Positions) -> Floats | None:
        """Target weights [N] at the last bar of the window, or None where the mandate does not trade.

        scores: [M, N] float64 of M members. combine: desired weights [M, N] of the members -> [N] of the account.
        Raises InputError for desired weights that are not finite or break a limit.
        """
        bar = self._bar(window)
        periods = bars_per_year(window.times)
        holdings = torch.from_numpy(positions.weights)
        close = torch.from_numpy(np.where(window.tradable[-1], window.close[-1], 1.0))
        rules = (self.config, self.leverage, periods)
        tilt = torch.from_numpy(combine(desired_weights(scores, bar, holdings, *rules).numpy()))
        if error := weights_error(tilt, window.symbols, limit=self.leverage, max_weight=self.config.max_weight):
            raise InputError(f"desired weights {error}")
        now = window.times[-1:]
        held_now = holdings.clone()

        def last_tilt() -> DesiredTilt:
            weights, base = unlimited_weights(scores, bar, held_now, self.config, self.leverage)
            active = active_weights(combine(weights.numpy()), base[0].numpy())
            return DesiredTilt(now, active[None], allowed_shares(bar, held_now, *rules).numpy()[None])

        self._last_tilt = last_tilt
        state = self._virtual(window, holdings, periods)
        decision = decide(tilt, bar, holdings, state.weights, state.budget, *rules)
        self._virtual_holdings = VirtualHoldings(decision.virtual, close, decision.budget)
        self._time = window.times[-1]
        self._symbols = window.symbols
        return decision.weights.numpy() if bool(decision.trades) else None

    @property
    def desired_tilt(self) -> DesiredTilt | None:
        """Desired tilt of the last decision, computed when asked for; None before the first decision."""
        return None if self._last_tilt is None else self._last_tilt()

    def virtual_holdings(self, window: Window, positions: Positions) -> VirtualHoldings:
        """Virtual holdings and turnover budget at the last bar of the window, before its decision."""
        return self._virtual(window, torch.from_numpy(positions.weights), bars_per_year(window.times))

    def state(self) -> AccountState | None:
        """Virtual holdings after the last decision as plain JSON values; None before the first decision."""
        if self._virtual_holdings is None or self._time is None:
            return None
        budget = self._virtual_holdings.budget
        return {
            "time": str(self._time),
            "weights": dict(zip(self._symbols, self._virtual_holdings.weights.tolist(), strict=True)),
            "budget": None if budget is None else float(budget),
        }

    def restore(self, state: AccountState | None, symbols: Sequence[str]) -> None:
        """Continue from `state`; None forgets the virtual holdings: they then start at the actual ones.

        The weight of a symbol that the account no longer trades becomes cash; later decisions invest it.
        """
        self._virtual_holdings = self._time = None
        if state is None:
            return
        weights = torch.tensor([state["weights"].get(symbol, 0.0) for symbol in symbols], dtype=torch.float64)
        budget = None
        if self.config.max_turnover:
            left = initial_budget(self.config) if state["budget"] is None else state["budget"]
            budget = torch.tensor(left, dtype=torch.float64)
        self._virtual_holdings = VirtualHoldings(weights, torch.ones_like(weights), budget)
        self._time = np.datetime64(state["time"])
        self._symbols = tuple(symbols)

    def _bar(self, window: Window) -> MandateBar:
        tradable = torch.from_numpy(window.tradable[-1])
        returns = None
        if needs_returns(self.config):
            is_tradable = torch.from_numpy(window.tradable[-RISK_BARS - 1 :])
            close = torch.from_numpy(window.close[-RISK_BARS - 1 :]).nan_to_num(1.0)
            returns = bar_returns(close, is_tradable)[-RISK_BARS:]
            missing = RISK_BARS - len(returns)
            returns = torch.cat([returns.new_zeros(missing, returns.shape[1]), returns])
        decides = torch.from_numpy(decision_bars(window.times[-MIN_LOOKBACK:], self.config.decide_every)[-1:])
        base = torch.from_numpy(base_at(self.config.base, window))
        return MandateBar(base, tradable, decides, returns, group_members(self.config, window.symbols))

    def _virtual(self, window: Window, holdings: Tensor, periods: float) -> VirtualHoldings:
        """Virtual holdings drifted to the last bar of the window; the actual ones if the last decision is not in it."""
        index = None if self._time is None else _index(window.times, self._time)
        close = torch.from_numpy(window.close[-1])
        if self._virtual_holdings is None or index is None or len(self._virtual_holdings.weights) != len(holdings):
            return VirtualHoldings.initial(holdings, close, self.config)
        before = torch.from_numpy(_forward_filled(window, index))
        now = torch.from_numpy(_forward_filled(window, len(window.times) - 1))
        state = self._virtual_holdings._replace(close=before)
        return state.moved(now, len(window.times) - 1 - index, self.config, periods)


@dataclass
class BasePortfolio:
    """The mandate at tilt 0 with the same trading, as a strategy: what the tilts of an agent are measured against.

    feature_names: none, or one feature whose values are the scores instead of 0; undefined values are 0.
    """

    mandate: MandateConfig
    leverage: float = 1.0
    name: str = "mandate_at_tilt_zero"
    feature_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.account = MandateAccount(self.mandate, self.leverage)
        self.lookback = self.account.lookback
        self.scored_decision: ScoredDecision | None = None  # the last decision, if a feature was its score

    def recreate(self) -> BasePortfolio:
        """A copy without virtual holdings."""
        return BasePortfolio(self.mandate, self.leverage, self.name, self.feature_names)

    def state(self) -> AccountState | None:
        """Virtual holdings, see `MandateAccount.state`."""
        return self.account.state()

    def restore(self, state: Mapping[str, Any] | None, symbols: Sequence[str]) -> None:
        """Continue from `state`, see `MandateAccount.restore`."""
        self.account.restore(cast(AccountState | None, state), symbols)

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """Target weights [N], or None where the mandate does not trade."""
        scores = torch.zeros(1, len(window.symbols), dtype=torch.float64)
        if window.features is not None:
            rows = torch.from_numpy(np.nan_to_num(window.features)).double().unsqueeze(0)  # [1, N, 1]
            scores = rows[..., 0]
            self.scored_decision = ScoredDecision(
                window.times[-1], self.feature_names, rows, window.tradable[-1], lambda rows: rows[0, :, 0]
            )
        return self.account.target_weights(scores, lambda weights: weights[0], window, positions)


@runtime_checkable
class ScoredStrategy(Strategy, Protocol):
    """A strategy that decides from scores, possibly through the account of a mandate."""

    @property
    def account(self) -> MandateAccount | None:
        """Its account; None for unconstrained weights."""
        ...

    @property
    def scored_decision(self) -> ScoredDecision | None:
        """Its last decision; None before the first one, and for a decision without scores."""
        ...


class DecisionRecorder:
    """Wrap a strategy and record the scores of its agents, and their desired weights before limits and slow trading."""

    def __init__(self, inner: ScoredStrategy) -> None:
        self.inner = inner
        self.name = inner.name
        self.feature_names = inner.feature_names
        self.lookback: int | None = getattr(inner, "lookback", None)
        self._tilts: list[DesiredTilt] = []
        self.monthly_decisions: list[ScoredDecision] = []  # the first one of each month
        self.last_decision: ScoredDecision | None = None

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """Target weights of the wrapped strategy."""
        weights = self.inner.target_weights(window, positions)
        now = window.times[-1]
        tilt = None if self.inner.account is None else self.inner.account.desired_tilt
        if tilt is not None and tilt.times[-1] == now:  # else the strategy did not use its account
            self.record_tilts(tilt)
        decision = self.inner.scored_decision
        if decision is not None and decision.time == now:
            self.record_decision(decision)
        return weights

    def record_tilts(self, tilt: DesiredTilt) -> None:
        """Record desired weights of later bars."""
        self._tilts.append(tilt)

    def record_decision(self, decision: ScoredDecision) -> None:
        """Record a later decision."""
        if self.last_decision is None or not _same_month(self.last_decision, decision):
            self.monthly_decisions.append(decision)
        self.last_decision = decision

    def desired_tilts(self, times: Times, assets: int) -> DesiredTilts:
        """Desired tilts at the bars `times`; NaN where there are none."""
        weights = np.full((len(times), assets), np.nan)
        for tilt in self._tilts:
            weights[np.searchsorted(times, tilt.times)] = tilt.weights
        allowed = float(np.mean(np.concatenate([tilt.allowed for tilt in self._tilts]))) if self._tilts else math.nan
        return DesiredTilts(weights, allowed)


def _same_month(first: ScoredDecision, second: ScoredDecision) -> bool:
    return bool(first.time.astype("datetime64[M]") == second.time.astype("datetime64[M]"))


def _index(times: Times, time: np.datetime64) -> int | None:
    """Index of a bar before the last one, None if it is not there."""
    positions_of_time = np.flatnonzero(times[:-1] == time)
    return int(positions_of_time[0]) if len(positions_of_time) else None


def _forward_filled(window: Window, t: int) -> Floats:
    """Closes [N] at bar t forward-filled over gaps within the window; 1.0 before the first."""
    close: Floats = window.close[t]
    if np.isfinite(close).all():
        return close
    has_price = np.isfinite(window.close[: t + 1])
    latest = np.where(has_price.any(0), t - has_price[::-1].argmax(0), 0)
    close = np.where(has_price.any(0), window.close[latest, np.arange(has_price.shape[1])], 1.0)
    return close
