"""Backtest a strategy: it is called at every bar with copies of past data only; `simulate` keeps its account."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from finrl_pod.errors import FinrlPodError, InputError
from finrl_pod.evaluate.intrabar_orders import IntrabarOrders, orders_of
from finrl_pod.evaluate.metrics import bars_per_year, summary
from finrl_pod.evaluate.simulate import Ledger, bar_date, simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.protocols import Strategy
from finrl_pod.tables import stored
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Positions, Tensor, Window


def backtest(
    strategy: Strategy,
    panel: Panel,
    market: MarketTensor,
    first: int,
    last: int,
    rules: ExecutionRules,
    cash: float,
) -> BacktestResult:
    """Backtest one account that starts in cash at bar `first` and is marked at the closes first..last.

    market: built from the panel by `build_market`; its fill rule applies. The strategy is called at every bar
    first <= t < last. If it has an attribute `lookback` (bars, at least 1), its window has only that many rows, which
    avoids copying the whole past. If it has an attribute `orders` (`OrderRules`), they fill within bars. Raises
    InputError if panel and market differ, if the market lacks one of the strategy's features, for orders that the
    prices do not allow, and with the bar's date if the strategy raises or returns invalid weights.
    """
    if market.symbols != panel.symbols or not np.array_equal(market.times, panel.times):
        raise InputError(
            "the market was built from another panel: their symbols or times differ; rebuild it with build_market"
        )
    columns = feature_columns(strategy, market)
    lookback, feature_bars = lookback_of(strategy), feature_lookback_of(strategy)
    closes = market.close[first : last + 1].double().unbind(0)

    def decide(t: int, cash: Tensor, shares: Tensor) -> Tensor | None:
        features = features_at(market, t, columns, feature_bars)
        positions = positions_at(cash[0], shares[0], closes[t - first])
        weights = target_weights_of(strategy, window_at(panel, t, lookback, features), positions, bar_date(market, t))
        return None if weights is None else torch.from_numpy(weights).unsqueeze(0).to(shares.device)

    rules_within = orders_of(strategy)
    orders = None if rules_within is None else IntrabarOrders(rules_within, panel, market, rules)
    ledger = simulate(market, decide, first, last, rules, cash, orders=orders)
    return backtest_result(strategy.name, market, ledger)


def lookback_of(strategy: Strategy) -> int | None:
    """Number of trailing bars that a strategy needs, None for all. InputError for anything but a positive integer."""
    lookback = getattr(strategy, "lookback", None)
    if lookback is None:
        return None
    if not isinstance(lookback, int | np.integer) or lookback < 1:
        raise InputError(f"lookback of strategy {strategy.name} must be an integer of at least 1 bar, got {lookback!r}")
    return int(lookback)


def feature_lookback_of(strategy: Strategy) -> int:
    """Number of trailing bars of features that a strategy needs. InputError for anything but a positive integer."""
    bars = getattr(strategy, "feature_lookback", 1)
    if not isinstance(bars, int | np.integer) or bars < 1:
        raise InputError(
            f"feature_lookback of strategy {strategy.name} must be an integer of at least 1 bar, got {bars!r}"
        )
    return int(bars)


def features_at(market: MarketTensor, t: int, columns: list[int] | None, bars: int = 1) -> Floats | None:
    """Raw features in these columns: [N, F] of bar t, or [B, N, F] of up to `bars` > 1 bars that end with it.

    None without columns.
    """
    if columns is None:
        return None
    rows = market.raw_features[t] if bars == 1 else market.raw_features[max(0, t + 1 - bars) : t + 1]
    values: Floats = rows[..., columns].double().cpu().numpy()
    return values


def _short_window(error: BaseException, window: Window) -> str:
    """A hint if a strategy may have asked for more bars than there are yet."""
    if not isinstance(error, IndexError):
        return ""
    bars = len(window.times)
    return f"; the window has {bars} bar{'s' * (bars != 1)} here, fewer at the start of the data: return None to wait"


def target_weights_of(strategy: Strategy, window: Window, positions: Positions, when: str) -> Floats | None:
    """Call a strategy and return a copy of its target weights [N], or None.

    when: date of the bar, for messages. Raises InputError if the strategy raises an exception or returns anything but
    None or one number per symbol.
    """
    try:
        target = strategy.target_weights(window, positions)
    except FinrlPodError:
        raise
    except (Exception, SystemExit) as error:  # a strategy must not end the program
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        where = "".join(f", {line}" for line in (_location(error),) if line)
        raise InputError(
            f"strategy {strategy.name} failed at {when}: {' '.join(text.split())}{where}{_short_window(error, window)}"
        ) from error
    if target is None:
        return None
    try:
        weights = np.array(target, dtype=np.float64)  # a copy: the strategy may change its own array later
    except (TypeError, ValueError):
        raise InputError(
            f"target weights of {strategy.name} at {when} must be an array of numbers or None, got "
            f"{type(target).__name__}"
        ) from None
    if weights.shape != (len(window.symbols),):
        raise InputError(
            f"target weights of {strategy.name} at {when} must be one number for each of the "
            f"{len(window.symbols)} symbols, got shape {weights.shape}"
        )
    return weights


def _location(error: BaseException) -> str:
    """Where an exception was raised, as `file.py line 12`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name} line {trace.tb_lineno}"


def backtest_result(name: str, market: MarketTensor, ledger: Ledger, account: int = 0) -> BacktestResult:
    """Result of one account of a ledger, with its metrics."""
    equity, weights, turnover, costs = (
        x[:, account].cpu().numpy().copy() for x in (ledger.equity, ledger.weights, ledger.turnover, ledger.costs)
    )
    risk_free = None if ledger.risk_free is None else ledger.risk_free.cpu().numpy().copy()
    return BacktestResult(
        name=name,
        times=market.times[ledger.first : ledger.last + 1].copy(),
        symbols=market.symbols,
        equity=equity,
        weights=stored(weights),
        turnover=turnover,
        costs=costs,
        metrics=summary(equity, turnover, costs, bars_per_year(market.times), risk_free),
        cost_parts={part: values[:, account].cpu().numpy().copy() for part, values in ledger.cost_parts.items()},
        risk_free=risk_free,
        carry=0.0 if ledger.carry is None else float(ledger.carry[:, account].sum()),
        dividends=None if ledger.dividends is None else ledger.dividends[:, account].cpu().numpy().copy(),
        paid=None if ledger.paid is None else ledger.paid[:, account].cpu().numpy().copy(),
    )


def window_at(panel: Panel, t: int, lookback: int | None = None, features: Floats | None = None) -> Window:
    """Copies of the bars up to and including t: all of them, or the last `lookback`. features: of its strategy."""
    start = 0 if lookback is None else max(0, t + 1 - lookback)
    past = slice(start, t + 1)
    tradable = panel.investable[past].copy()

    def column(values: Floats | None) -> Floats | None:
        return None if values is None else values[past].copy()

    return Window(
        times=panel.times[past].copy(),
        symbols=panel.symbols,
        close=np.where(panel.tradable[past], panel.close[past], np.nan),
        tradable=tradable,
        open=column(panel.open),
        high=column(panel.high),
        low=column(panel.low),
        volume=column(panel.volume),
        benchmark=None if panel.benchmark is None else panel.benchmark.close[past].copy(),
        features=features,
    )


def feature_columns(strategy: Strategy, market: MarketTensor) -> list[int] | None:
    """Columns of the strategy's features in the market; None if it uses none. Raises InputError if one is missing."""
    if not strategy.feature_names:
        return None
    missing = [name for name in strategy.feature_names if name not in market.feature_names]
    if missing:
        raise InputError(
            f"strategy {strategy.name} needs the features {', '.join(missing)}, which this market lacks; "
            f"it has {', '.join(market.feature_names) or 'none'}"
        )
    return [market.feature_names.index(name) for name in strategy.feature_names]


def positions_at(cash: Tensor, shares: Tensor, close: Tensor) -> Positions:
    """Positions at the close from cash [], shares [N] and close [N]. A ruined account has zero weights."""
    values = shares * close  # summed by torch, so that backtests equal a tournament's scores to the last bit
    total = float(cash + values.sum())
    if total <= 0:
        return Positions(weights=np.zeros(len(values)), cash=1.0, equity=total)
    return Positions(weights=values.cpu().numpy() / total, cash=float(cash) / total, equity=total)
