"""Run a strategy over history: it is handed copies of the past alone, its account is kept by `simulate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from finrl_pod.errors import FinrlPodError, InputError
from finrl_pod.evaluate.metrics import bars_per_year, summary
from finrl_pod.evaluate.simulate import Ledger, bar_date, simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.protocols import Strategy
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Positions, Tensor, Window

__all__ = ["Ledger", "backtest", "backtest_result", "feature_columns", "simulate", "window_at"]


def backtest(
    strategy: Strategy,
    panel: Panel,
    market: MarketTensor,
    first: int,
    last: int,
    rules: ExecutionRules,
    cash: float,
) -> BacktestResult:
    """One account that starts in cash at bar `first`, follows `strategy`, and is marked at closes first..last.

    `market` is the panel made ready (`build_market`); its fill rule holds. The strategy is asked at every bar
    first <= t < last. A strategy with an attribute `lookback` (bars, at least 1) is handed that many trailing rows
    instead of everything, which spares the copying. Raises InputError when panel and market differ, when the market
    lacks a feature that the strategy names, and with the bar's date on weights that `simulate` refuses, on what is no
    list of numbers, and when the strategy itself raises.
    """
    if market.symbols != panel.symbols or not np.array_equal(market.times, panel.times):
        raise InputError("the market was built from another panel: their symbols or times differ; build it anew")
    columns = feature_columns(strategy, market)
    lookback = lookback_of(strategy)
    closes = market.close.double().unbind(0)

    def decide(t: int, cash: Tensor, shares: Tensor) -> Tensor | None:
        features = None if columns is None else market.raw_features[t][:, columns].double().cpu().numpy()
        positions = positions_at(cash[0], shares[0], closes[t])
        weights = target_weights_of(strategy, window_at(panel, t, lookback, features), positions, bar_date(market, t))
        return None if weights is None else torch.from_numpy(weights).unsqueeze(0).to(shares.device)

    ledger = simulate(market, decide, first, last, rules, cash)
    return backtest_result(strategy.name, market, ledger)


def lookback_of(strategy: Strategy) -> int | None:
    """The bars that a strategy looks back on, None for all. Raises InputError for what is no number of bars."""
    lookback = getattr(strategy, "lookback", None)
    if lookback is None:
        return None
    if not isinstance(lookback, int | np.integer) or lookback < 1:
        raise InputError(
            f"lookback of strategy {strategy.name} must be a whole number of bars, at least 1 bar, got {lookback!r}"
        )
    return int(lookback)


def target_weights_of(strategy: Strategy, window: Window, positions: Positions, when: str) -> Floats | None:
    """Ask a strategy for its target weights [N], or None. Raises InputError naming the bar `when` for an exception of
    the strategy's own, and for what is not one finite or infinite number for each symbol."""
    try:
        target = strategy.target_weights(window, positions)
    except FinrlPodError:
        raise
    except (Exception, SystemExit) as error:  # a strategy does not end the program
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        where = "".join(f", {line}" for line in (_last_line(error),) if line)
        raise InputError(f"strategy {strategy.name} failed at {when}: {' '.join(words.split())}{where}") from error
    if target is None:
        return None
    try:
        weights = np.array(target, dtype=np.float64)  # a copy: what the strategy keeps it may change
    except (TypeError, ValueError):
        raise InputError(
            f"target weights of {strategy.name} at {when} must be an array of numbers or None, got "
            f"{type(target).__name__}"
        ) from None
    if weights.shape != (len(window.symbols),):
        raise InputError(
            f"target weights of {strategy.name} at {when} must be one for each of the "
            f"{len(window.symbols)} symbols, got shape {weights.shape}"
        )
    return weights


def _last_line(error: BaseException) -> str:
    """Where the exception arose, as `file.py line 12`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name} line {trace.tb_lineno}"


def backtest_result(name: str, market: MarketTensor, ledger: Ledger, account: int = 0) -> BacktestResult:
    """One account of a ledger as a result with its metrics."""
    equity, weights, turnover, costs = (
        x[:, account].cpu().numpy().copy() for x in (ledger.equity, ledger.weights, ledger.turnover, ledger.costs)
    )
    risk_free = None if ledger.risk_free is None else ledger.risk_free.cpu().numpy().copy()
    return BacktestResult(
        name=name,
        times=market.times[ledger.first : ledger.last + 1].copy(),
        symbols=market.symbols,
        equity=equity,
        weights=weights,
        turnover=turnover,
        costs=costs,
        metrics=summary(equity, turnover, costs, bars_per_year(market.times), risk_free),
        cost_parts={part: values[:, account].cpu().numpy().copy() for part, values in ledger.cost_parts.items()},
        risk_free=risk_free,
        carry=0.0 if ledger.carry is None else float(ledger.carry[:, account].sum()),
    )


def window_at(panel: Panel, t: int, lookback: int | None = None, features: Floats | None = None) -> Window:
    """Copies of bars up to and including t: all of them, or the last `lookback`."""
    start = 0 if lookback is None else max(0, t + 1 - lookback)
    past = slice(start, t + 1)
    tradable = panel.tradable[past].copy()

    def column(values: Floats | None) -> Floats | None:
        return None if values is None else values[past].copy()

    return Window(
        times=panel.times[past].copy(),
        symbols=panel.symbols,
        close=np.where(tradable, panel.close[past], np.nan),
        tradable=tradable,
        open=column(panel.open),
        high=column(panel.high),
        low=column(panel.low),
        volume=column(panel.volume),
        benchmark=None if panel.benchmark is None else panel.benchmark.close[past].copy(),
        features=features,
    )


def feature_columns(strategy: Strategy, market: MarketTensor) -> list[int] | None:
    """Where the strategy's features stand in the market's table; None when it names none."""
    if not strategy.feature_names:
        return None
    missing = [name for name in strategy.feature_names if name not in market.feature_names]
    if missing:
        raise InputError(
            f"strategy {strategy.name} needs the features {', '.join(missing)} that this market was built without; "
            f"it has {', '.join(market.feature_names) or 'none'}"
        )
    return [market.feature_names.index(name) for name in strategy.feature_names]


def positions_at(cash: Tensor, shares: Tensor, close: Tensor) -> Positions:
    """The account at the close: cash [], shares, close [N]. Weights are 0 where nothing is left to hold a share of."""
    values = shares * close  # summed by torch, as where a tournament scores: to the last bit
    worth = float(cash + values.sum())
    if worth <= 0:
        return Positions(weights=np.zeros(len(values)), cash=1.0, equity=worth)
    return Positions(weights=values.cpu().numpy() / worth, cash=float(cash) / worth, equity=worth)
