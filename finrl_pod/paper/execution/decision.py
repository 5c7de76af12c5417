"""One decision: the strategy sees the same window, features and account as in a backtest, and answers with weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Protocol

import numpy as np
import torch

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError, FinrlPodError
from finrl_pod.evaluate.backtest import feature_columns, window_at
from finrl_pod.market.weights import weights_error
from finrl_pod.paper.brokers.port import BarTable, DataFeed
from finrl_pod.paper.execution.price_check import CheckedPrices, check_prices
from finrl_pod.paper.records import CorporateAction
from finrl_pod.paper.settings import DataSettings
from finrl_pod.protocols import Strategy
from finrl_pod.types import Floats, Positions

RAW_SESSIONS = timedelta(days=14)  # of unadjusted closes, to see a jump
EVERYTHING = date(1900, 1, 1)


class Look(Protocol):
    """Is told of every look at prices."""

    def __call__(self, table: BarTable, adjustment: str, sha256: str) -> None: ...


@dataclass(frozen=True, eq=False)
class Decision:
    """weights: [N] of own equity, None to leave everything as it is. prices: what is sized at.

    inputs: what the strategy saw of the decision bar, for the journal, with the hash of the whole window.
    """

    weights: Floats | None
    prices: CheckedPrices
    inputs: str
    feed: str


@dataclass(frozen=True)
class Holdings:
    """Own shares by symbol and own cash. prices: the last known close of each symbol, which shares are worth even where
    the decision bar has none.
    """

    shares: Mapping[str, Decimal]
    cash: Decimal
    prices: Mapping[str, Decimal]


class StrategyFailed(FinrlPodError):
    """The strategy raised, or what it returned cannot be traded: nothing new is bought on it."""


def look_at_prices(
    feed: DataFeed, symbols: Sequence[str], bar: date, actions: Sequence[CorporateAction], settings: DataSettings,
    look: Look,
) -> CheckedPrices:  # fmt: skip
    """Fetch the whole adjusted window anew, and the last unadjusted closes, and check them.

    Raises BrokerError when a feed does not answer and DataError when nothing of the answer can be used.
    """
    # Sessions are at most seven calendar days for five; a margin for holidays, then cut to length.
    start = bar - timedelta(days=settings.window * 3 // 2 + 30) if settings.window else EVERYTHING
    adjusted = _cut(feed.bars(symbols, start, bar, "all"), settings.window)
    raw = feed.bars(symbols, bar - RAW_SESSIONS, bar, "raw")
    for table, adjustment in ((adjusted, "all"), (raw, "raw")):
        look(table, adjustment, _sha256(table))
    return check_prices(adjusted, raw, bar, actions, settings.max_jump)


def decide(strategy: Strategy, checked: CheckedPrices, own: Holdings, *, short: bool = False) -> Decision:
    """Ask the strategy. Raises StrategyFailed with one sentence."""
    panel = checked.panel
    t = len(panel.times) - 1
    prices = [float(own.prices.get(symbol, Decimal(0))) for symbol in panel.symbols]
    held = np.array([float(own.shares.get(symbol, Decimal(0))) for symbol in panel.symbols])
    values = held * np.array(prices)
    cash = float(own.cash)
    worth = cash + float(values.sum())
    if worth <= 0:
        raise StrategyFailed(f"own equity is {worth:.2f}: there is nothing to trade with")
    positions = Positions(weights=values / worth, cash=cash / worth, equity=worth)
    features = _features(strategy, checked)
    lookback = getattr(strategy, "lookback", None)
    try:
        weights = strategy.target_weights(window_at(panel, t, lookback, features), positions)
    except Exception as error:
        raise StrategyFailed(f"strategy {strategy.name} raised {type(error).__name__}: {error}") from error
    if weights is not None:
        weights = _checked(strategy.name, weights, panel.symbols, short=short)
    return Decision(weights, checked, _inputs(checked, features), panel.source)


def _features(strategy: Strategy, checked: CheckedPrices) -> Floats | None:
    """[N, F] of the last bar, by way of the same market tensor as in a backtest."""
    if not strategy.feature_names:
        return None
    panel = checked.panel
    try:
        market = build_market(panel, tuple(strategy.feature_names), (0, len(panel.times) - 1))
        columns = feature_columns(strategy, market)
    except FinrlPodError as error:
        raise StrategyFailed(f"the features of strategy {strategy.name} cannot be computed: {error}") from error
    values: Floats = market.raw_features[-1][:, columns].double().numpy()
    return values


def _checked(name: str, target: object, symbols: Sequence[str], *, short: bool) -> Floats:
    try:
        weights = np.array(target, dtype=np.float64)
    except (TypeError, ValueError):
        raise StrategyFailed(f"strategy {name} must return numbers or None, got {type(target).__name__}") from None
    if weights.shape != (len(symbols),):
        raise StrategyFailed(f"strategy {name} must return {len(symbols)} weights, got the shape {weights.shape}")
    if error := weights_error(torch.from_numpy(weights), symbols, short=short):
        raise StrategyFailed(f"target weights of strategy {name} {error}")
    return weights if short else np.maximum(weights, 0.0)


def _inputs(checked: CheckedPrices, features: Floats | None) -> str:
    panel = checked.panel
    bars = {
        symbol: {c: float(v) for c in panel.columns if np.isfinite(v := getattr(panel, c)[-1, n])}
        for n, symbol in enumerate(panel.symbols)
    }
    inputs = {
        "window": {"sha256": panel.sha256, "bars": len(panel.times), "from": str(panel.times[0].astype("M8[D]"))},
        "bars": bars,
        "closes": {symbol: str(price) for symbol, price in checked.closes.items()},
        "problems": dict(checked.problems),
        "features": None if features is None else [[float(x) if np.isfinite(x) else None for x in r] for r in features],
    }
    return json.dumps(inputs, sort_keys=True, allow_nan=False)


def _cut(table: BarTable, window: int) -> BarTable:
    if not len(table.times):
        raise DataError("the feed has no bars of these symbols: check their names and the feed")
    if not window or len(table.times) <= window:
        return table
    columns = {name: getattr(table, name)[-window:] for name in ("open", "high", "low", "close", "volume")}
    return BarTable(times=table.times[-window:], symbols=table.symbols, feed=table.feed, **columns)


def _sha256(table: BarTable) -> str:
    digest = hashlib.sha256(repr(table.symbols).encode())
    digest.update(table.times.astype("datetime64[ns]").astype("<i8").tobytes())
    for name in ("open", "high", "low", "close", "volume"):
        digest.update(np.ascontiguousarray(getattr(table, name), dtype="<f8").tobytes())
    return digest.hexdigest()
