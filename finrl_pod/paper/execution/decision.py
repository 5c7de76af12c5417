"""One trading decision: target weights of the strategy on the same window, features and account as in a backtest."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import torch

from finrl_pod.data.sources.feature_tables import with_newest_tables
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import FinrlPodError
from finrl_pod.evaluate.backtest import feature_columns, feature_lookback_of, features_at, window_at
from finrl_pod.market.execution import weights_error
from finrl_pod.market.protocols import MandatedStrategy
from finrl_pod.paper.execution.price_check import CheckedPrices
from finrl_pod.paper.journal.decision_state import StrategyState
from finrl_pod.protocols import Strategy
from finrl_pod.types import Floats, Positions
from finrl_pod.user_files import error_text, is_interrupt


@dataclass(frozen=True, eq=False)
class Decision:
    """Target weights and their inputs.

    weights: [N] fractions of own equity, None to leave all positions unchanged. prices: used for sizing.
    inputs: JSON for the journal with the strategy inputs on the decision bar and the hash of the whole window.
    state: virtual holdings of the strategy as plain JSON values, None without any.
    """

    weights: Floats | None
    prices: CheckedPrices
    inputs: str
    feed: str
    state: StrategyState | None = None


@dataclass(frozen=True)
class Holdings:
    """Own shares by symbol and own cash. prices: last known close of each symbol, also if the decision bar has none."""

    shares: Mapping[str, Decimal]
    cash: Decimal
    prices: Mapping[str, Decimal]


class StrategyFailed(FinrlPodError):
    """The strategy raised, or returned weights that cannot be traded; no orders follow."""


@contextlib.contextmanager
def strategy_failures(name: str) -> Iterator[None]:
    """Raise StrategyFailed for whatever a strategy's code raises: it must not end the daemon. Ctrl-C passes."""
    try:
        yield
    except FinrlPodError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise StrategyFailed(f"{name} raised {error_text(error)}") from error


def decide(
    strategy: Strategy, prices_of_decision: CheckedPrices, holdings: Holdings, *, state: StrategyState | None = None
) -> Decision:
    """Return the decision of the strategy on the last bar. Raises StrategyFailed.

    state: virtual holdings after the decision before, as the journal keeps them. They are restored each time, so that a
    decision repeated after an error, or by another process, continues from the same ones.
    """
    panel = prices_of_decision.panel
    t = len(panel.times) - 1
    prices = [float(holdings.prices.get(symbol, Decimal(0))) for symbol in panel.symbols]
    shares = np.array([float(holdings.shares.get(symbol, Decimal(0))) for symbol in panel.symbols])
    values = shares * np.array(prices)
    cash = float(holdings.cash)
    equity = cash + float(values.sum())
    if equity <= 0:
        raise StrategyFailed(f"own equity is {equity:.2f}; it must be above 0 to trade")
    positions = Positions(weights=values / equity, cash=cash / equity, equity=equity)
    with strategy_failures(f"strategy {strategy.name}"):
        features = _features(strategy, prices_of_decision)
        lookback = getattr(strategy, "lookback", None)
        if isinstance(strategy, MandatedStrategy):
            strategy.restore(state, panel.symbols)
        weights = strategy.target_weights(window_at(panel, t, lookback, features), positions)
        if weights is not None:
            weights = _check_weights(strategy.name, weights, panel.symbols)
        new_state = strategy.state() if isinstance(strategy, MandatedStrategy) else None
    return Decision(weights, prices_of_decision, _inputs(prices_of_decision, features), panel.source, new_state)


def _features(strategy: Strategy, prices: CheckedPrices) -> Floats | None:
    """Return the features of the last bar or bars, computed by the same market tensor as in a backtest."""
    if not strategy.feature_names:
        return None
    try:
        panel = with_newest_tables(prices.panel, strategy)
        market = build_market(panel, tuple(strategy.feature_names), (0, len(panel.times) - 1))
        columns = feature_columns(strategy, market)
    except FinrlPodError as error:
        raise StrategyFailed(f"the features of strategy {strategy.name} cannot be computed: {error}") from error
    bars = feature_lookback_of(strategy)
    if bars > len(panel.times):
        raise StrategyFailed(
            f"strategy {strategy.name} reads features of {bars} bars and got {len(panel.times)}; raise data.window"
        )
    return features_at(market, len(panel.times) - 1, columns, bars)


def _check_weights(name: str, target: object, symbols: Sequence[str]) -> Floats:
    try:
        weights = np.array(target, dtype=np.float64)
    except (TypeError, ValueError):
        raise StrategyFailed(f"strategy {name} must return numbers or None, got {type(target).__name__}") from None
    if weights.shape != (len(symbols),):
        raise StrategyFailed(f"strategy {name} must return {len(symbols)} weights, got the shape {weights.shape}")
    if error := weights_error(torch.from_numpy(weights), symbols):
        raise StrategyFailed(f"target weights of strategy {name} {error}")
    return np.maximum(weights, 0.0)


def _inputs(prices: CheckedPrices, features: Floats | None) -> str:
    panel = prices.panel
    bars = {
        symbol: {c: float(v) for c in panel.columns if np.isfinite(v := getattr(panel, c)[-1, n])}
        for n, symbol in enumerate(panel.symbols)
    }
    inputs = {
        "window": {"sha256": panel.sha256, "bars": len(panel.times), "from": str(panel.times[0].astype("M8[D]"))},
        "bars": bars,
        "closes": {symbol: str(price) for symbol, price in prices.closes.items()},
        "problems": dict(prices.problems),
        "features": None if features is None else _rows_of_json(features),
    }
    return json.dumps(inputs, sort_keys=True, allow_nan=False)


def _rows_of_json(features: Floats) -> list[list[float | None]]:
    """Features of the decision bar [N, F]; the hash of the window stands for earlier bars."""
    rows = features if features.ndim == 2 else features[-1]
    return [[float(x) if np.isfinite(x) else None for x in row] for row in rows]
