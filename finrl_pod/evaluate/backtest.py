"""Backtests: `backtest` calls a strategy at every bar with copies of past data, `simulate` keeps batches of accounts.

A decision at bar t is sized on the closes of t and fills at `market.fill[t]`, a price of bar t+1 (fill rule "next") or
of t ("same_close"). With a delay of k bars it is executed like one at t + k - 1. All amounts are float64.
"""

from __future__ import annotations

import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from finrl_pod.errors import FinrlPodError, InputError
from finrl_pod.evaluate.intrabar_orders import IntrabarOrders, orders_of
from finrl_pod.evaluate.metrics import AFTER_TAX, bars_per_year, flow_returns, summary, time_weighted_equity
from finrl_pod.evaluate.taxes import after_tax_return
from finrl_pod.market.execution import (
    ExecutionRules,
    Fills,
    MarketPeriod,
    account_equity,
    limit_gross_exposure,
    trades_to_weights,
    weights_error,
    whole_trades,
)
from finrl_pod.market.venue import Venue
from finrl_pod.native.device import one_thread
from finrl_pod.protocols import Strategy
from finrl_pod.tables import stored
from finrl_pod.types import BacktestResult, Bools, Floats, MarketTensor, Panel, Positions, Tensor, Times, Window

ATTRIBUTION_BARS = 256  # bars whose costs are attributed at a time
RUIN_FLOOR = 1e-9  # share of the starting equity that a ruined account counts as in log returns

Decide = Callable[[int, Tensor, Tensor], Tensor | None]


def backtest(strategy: Strategy, panel: Panel, period: MarketPeriod) -> BacktestResult:
    """Backtest one account that starts in cash and is marked at every close of the period.

    The market of the period is built from the panel by `build_market`; its fill rule applies. The strategy is called at
    every bar but the last. An attribute `lookback` (bars, at least 1) limits the rows of its window and avoids
    copying the whole past. An attribute `orders` (`OrderRules`) has orders that fill within bars. Raises InputError if
    panel and market differ, if the market lacks a feature of the strategy, for orders that the prices do not
    allow, and with the date of the bar if the strategy raises or returns invalid weights.
    """
    market = period.market
    first = period.first
    if market.symbols != panel.symbols or not np.array_equal(market.times, panel.times):
        raise InputError(
            "the market was built from another panel: their symbols or times differ; rebuild it with build_market"
        )
    rules_within = orders_of(strategy)
    orders = None if rules_within is None else IntrabarOrders(rules_within, panel, market, period.rules)
    decide = decider(strategy, panel, market, first, period.last)
    asks = decision_bars_of(strategy, market.times[first : period.last])
    span = (first, period.last, period.rules, period.cash)
    ledger = simulate(market, decide, *span, orders=orders, flows=period.flows, asks=asks)
    result = backtest_result(strategy.name, market, ledger)
    if not (period.rules.tax_short or period.rules.tax_long):
        return result
    after_tax = {AFTER_TAX.name: after_tax_return(result, market, period.rules)}
    return replace(result, metrics={**result.metrics, **after_tax})


def decider(strategy: Strategy, panel: Panel, market: MarketTensor, first: int, last: int) -> Decide:
    """The decisions of a strategy for one account at the bars first to last, from copies of past data."""
    columns = feature_columns(strategy, market)
    lookback = lookback_of(strategy)
    feature_bars = feature_lookback_of(strategy)
    closes = market.close[first : last + 1].double().unbind(0)

    def decide(t: int, cash: Tensor, shares: Tensor) -> Tensor | None:
        features = features_at(market, t, columns, feature_bars)
        values = shares[0] * closes[t - first]  # summed by torch: backtests equal scores of a tournament exactly
        total = float(cash[0] + values.sum())
        positions = Positions(weights=np.zeros(len(values)), cash=1.0, equity=total)  # of a ruined account
        if total > 0:
            positions = Positions(weights=values.cpu().numpy() / total, cash=float(cash[0]) / total, equity=total)
        weights = target_weights_of(strategy, window_at(panel, t, lookback, features), positions, bar_date(market, t))
        return None if weights is None else torch.from_numpy(weights).unsqueeze(0).to(shares.device)

    return decide


def decision_bars_of(strategy: Strategy, times: Times) -> Bools | None:
    """[T] bool, the bars at which a strategy may trade an account with holdings; None if it may at every bar."""
    decision_bars: Callable[[Times], Bools] | None = getattr(strategy, "decision_bars", None)
    return None if decision_bars is None else decision_bars(times)


def lookback_of(strategy: Strategy) -> int | None:
    """Number of trailing bars that a strategy needs, None for all. InputError for anything but a positive integer."""
    return None if getattr(strategy, "lookback", None) is None else _positive_bars(strategy, "lookback")


def feature_lookback_of(strategy: Strategy) -> int:
    """Number of trailing bars of features that a strategy needs. InputError for anything but a positive integer."""
    return _positive_bars(strategy, "feature_lookback")


def _positive_bars(strategy: Strategy, name: str) -> int:
    bars = getattr(strategy, name, 1)
    if not isinstance(bars, int | np.integer) or bars < 1:
        raise InputError(f"{name} of strategy {strategy.name} must be an integer of at least 1 bar, got {bars!r}")
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
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"strategy {strategy.name} failed at {when}: {' '.join(text.split())}, {Path(frame.filename).name} line "
            f"{frame.lineno}"
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


def backtest_result(name: str, market: MarketTensor, ledger: Ledger, account: int = 0) -> BacktestResult:
    """Result of one account of a ledger, with its metrics."""
    equity, weights, turnover, costs = (
        x[:, account].cpu().numpy().copy() for x in (ledger.equity, ledger.weights, ledger.turnover, ledger.costs)
    )
    risk_free = None if ledger.risk_free is None else ledger.risk_free.cpu().numpy().copy()
    times = market.times[ledger.first : ledger.last + 1].copy()
    flow_metrics = {}
    if ledger.flows is not None:
        flow_metrics = flow_returns(times, equity, ledger.flows)
        equity = time_weighted_equity(equity, ledger.flows)
    return BacktestResult(
        name=name,
        times=times,
        symbols=market.symbols,
        equity=equity,
        weights=stored(weights),
        turnover=turnover,
        costs=costs,
        metrics=summary(equity, turnover, costs, bars_per_year(market.times), risk_free) | flow_metrics,
        cost_parts={model: values[:, account].cpu().numpy().copy() for model, values in ledger.cost_parts.items()},
        risk_free=risk_free,
        carry=0.0 if ledger.carry is None else float(ledger.carry[:, account].sum()),
        dividends=None if ledger.dividends is None else ledger.dividends[:, account].cpu().numpy().copy(),
        paid=None if ledger.paid is None else ledger.paid[:, account].cpu().numpy().copy(),
        flows=ledger.flows,
    )


def window_at(panel: Panel, t: int, lookback: int | None = None, features: Floats | None = None) -> Window:
    """Copies of the bars up to and including t: all of them, or the last `lookback`. features: [N, F] or None."""
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
    """Columns of the strategy features in the market; None if it uses none. Raises InputError if one is missing."""
    if not strategy.feature_names:
        return None
    missing = [name for name in strategy.feature_names if name not in market.feature_names]
    if missing:
        raise InputError(
            f"strategy {strategy.name} needs the features {', '.join(missing)}, which this market lacks; "
            f"it has {', '.join(market.feature_names) or 'none'}"
        )
    return [market.feature_names.index(name) for name in strategy.feature_names]


@dataclass(frozen=True, eq=False, kw_only=True)
class AccountCurves:
    """B accounts over L = last - first + 1 bars, marked at the close. All float64, on the device of the market.

    equity: [L, B] currency. turnover: [L, B], value traded, both sides, over the equity before, per bar, at fill
    prices. costs: [L, B] currency. risk_free: [L-1] simple return of cash from one mark to the next, or None.
    """

    first: int
    last: int
    equity: Tensor
    turnover: Tensor
    costs: Tensor
    risk_free: Tensor | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Ledger(AccountCurves):
    """Accounts with their holdings and what moved their cash.

    weights: [L, B, N], holdings after the fill of the bar over equity (0 after ruin).
    cash: [B] and shares: [B, N], the account after the last bar. cost_parts: [L, B] currency by cost model; empty if
    there is only the proportional cost.
    carry: [L, B] currency, interest less borrow fees booked before the mark of the bar, or None. dividends: [L, B]
    currency received before the mark, negative on shorts, or None. paid: [L, B, N] currency, value of the trades of
    each asset, negative for sales; only with orders within bars: they fill at other prices than `market.fill`. flows:
    [L] currency paid in at the mark of the bar and part of it, negative if taken out, or None.
    """

    weights: Tensor
    cash: Tensor
    shares: Tensor
    cost_parts: Mapping[str, Tensor] = field(default_factory=dict)
    carry: Tensor | None = None
    dividends: Tensor | None = None
    paid: Tensor | None = None
    flows: Floats | None = None

    @property
    def log_returns(self) -> Tensor:
        """Log returns [L-1, B]; equity below `RUIN_FLOOR` of the first mark counts as that."""
        return torch.maximum(self.equity, self.equity[0] * RUIN_FLOOR).log().diff(dim=0)


@torch.no_grad()
@one_thread()
def simulate(
    market: MarketTensor,
    decide: Decide,
    first: int,
    last: int,
    rules: ExecutionRules,
    cash: float,
    batch: int = 1,
    orders: IntrabarOrders | None = None,
    flows: Floats | None = None,
    asks: Bools | None = None,
) -> Ledger:
    """Simulate `batch` accounts that start in cash at the close of bar `first`, marked at the closes first..last.

    decide(t, cash [B], shares [B, N]) is called for first <= t < last with copies of the accounts. It returns target
    weights [B, N] of the equity at the close of t (the rest stays in cash), or None to keep the holdings.

    Holdings that cannot trade are kept. Delisted holdings are sold at their last close regardless of the decision. An
    account whose equity is at or below zero (possible with shorts or borrowing) is closed out. With shorts, or a
    leverage below 1, orders are cut to the limit on gross exposure. orders: stops and limits within bars; their costs
    are not attributed to models. flows: [L] currency that is paid in at the close of each bar, negative if it is taken
    out: then the fills of the bar leave it in cash, if necessary by sales in proportion to the holdings. asks: [L-1]
    bool, bars at which `decide` is called while all accounts have holdings; at the others they keep them.

    Raises InputError with the date of the bar for weights of a wrong shape, NaN, negative without `rules.short`, or
    with a sum of absolute values above 1 + rules.borrow; for first, last or cash out of range; and for rules that the
    market's data or fill rule does not allow (`Venue`); and for flows of accounts with shorts, leverage or fills at
    the same close, and withdrawals of more than the account has.
    """
    bars, assets, _ = market.shape
    if not 0 <= first < last < bars:
        raise InputError(f"a backtest needs 0 <= first < last < {bars}, got first {first} and last {last}")
    check_cash(cash)
    venue = Venue(market, rules, torch.float64)
    same_close = venue.same_close
    if flows is not None and (same_close or rules.short or rules.leverage != 1):
        raise InputError(
            "deposits and withdrawals need long accounts that fill at the next bar; set environment.short = false, "
            'leverage = 1 and fill = "next"'
        )
    may_ruin = rules.short or rules.borrow > 0
    close_table = market.close[first : last + 1].double()
    closes = close_table.unbind(0)
    prices = venue.fill[first:last].unbind(0)
    fillable = market.fillable[first:last]
    delisted = market.delisted[first:last]
    all_fillable = fillable.all(-1).tolist()
    some_delisted = delisted.any(-1).tolist()

    funds = torch.full((batch,), float(cash), dtype=torch.float64, device=market.close.device)
    shares = torch.zeros(batch, assets, dtype=torch.float64, device=market.close.device)
    nothing = torch.zeros_like(funds)
    queue: deque[Tensor | None] = deque([None] * (venue.delay - 1))  # decisions not yet executed
    history: list[tuple[Tensor, Tensor, Tensor]] = []  # cash, turnover, costs of each bar; shares are in `held`
    holdings_table = torch.empty(len(closes), batch, assets, dtype=torch.float64, device=market.close.device)
    carry: list[Tensor] = [nothing]
    dividends: list[Tensor] = [nothing]
    payments: list[Tensor] = [torch.zeros_like(shares)]
    if not same_close:
        holdings_table[0] = shares
        history.append((funds, nothing, nothing))
    can_hold = asks is not None and not (may_ruin or same_close or venue.has_carry or orders or flows is not None)
    next_asked_bar = _next_true(asks, len(closes) - 1) if can_hold else []
    held_until = 0
    for i, close in enumerate(closes[:-1]):
        if i < held_until:
            continue
        if can_hold and next_asked_bar[i] > i and not any(target is not None for target in queue):
            held_until = _held_until(shares, delisted[i : next_asked_bar[i]], i)
            if held_until > i:
                holdings_table[len(history) : len(history) + held_until - i] = shares
                history.extend([(funds, nothing, nothing)] * (held_until - i))
                continue
        decision = decide(first + i, funds.clone(), shares.clone())
        if decision is not None:
            decision = decision.to(shares)
            if decision.shape != shares.shape:
                subject = f"target weights at {bar_date(market, first + i)}"
                raise InputError(f"{subject} must have the shape {tuple(shares.shape)}, got {tuple(decision.shape)}")
            check_weights(market, first + i, decision, rules)
        queue.append(decision)
        target = queue.popleft()
        morning = funds
        if venue.has_carry and not same_close:
            morning = venue.overnight(first + i, funds, shares, close)
        withdrawal = 0.0 if flows is None else min(float(flows[i + 1]), 0.0)
        available = morning + withdrawal
        is_short_of_cash = flows is not None and bool((available < 0).any())
        traded_value = payments[0]
        is_ruined = may_ruin and bool((account_equity(funds, shares, close) <= 0).any())
        must_sell = is_short_of_cash or ((some_delisted[i] or is_ruined) and bool((shares != 0).any()))
        if target is None and not must_sell:
            filled = Fills(available, shares, nothing, nothing)
        else:
            availability = None if all_fillable[i] else (fillable[i], delisted[i])
            trades = ordered_trades(venue, first + i, target, funds + withdrawal, shares, close, availability)
            price = prices[i]
            if orders is not None:
                trades, price = orders.limited(first + i, trades, price, close)
            if is_short_of_cash:
                if bool((account_equity(available, shares, price) <= 0).any()):
                    raise InputError(
                        f"the withdrawal of {-withdrawal:,.2f} at {bar_date(market, first + i + 1)} is more than the "
                        f"account has, {float(account_equity(morning, shares, price).min()):,.2f}; lower it"
                    )
                trades = _with_sales(venue, first + i, trades, available, shares * fillable[i], price)
            filled = venue.fill_trades(first + i, available, shares, trades, price)
            if orders is not None:
                orders.filled(shares, filled.shares, price)
                traded_value = (filled.shares - shares) * price
        if orders is not None:
            filled, sales = _with_exits(orders, venue, first + i, filled)
            payments.append(traded_value - sales)
        turnover = nothing
        if filled.traded is not nothing:
            equity_before = account_equity(morning, shares, prices[i])
            turnover = torch.where(equity_before > 0, filled.traded / equity_before, nothing)
        interest, dividend_shares = morning - funds, shares
        funds = filled.cash if flows is None else filled.cash + max(float(flows[i + 1]), 0.0)
        shares = filled.shares
        holdings_table[len(history)] = shares
        history.append((funds, turnover, filled.cost))
        if venue.has_carry and same_close:
            funds = venue.overnight(first + i, filled.cash, shares, close)
            interest, dividend_shares = funds - filled.cash, shares
        if venue.has_dividends:
            dividends.append(venue.dividends(first + i, dividend_shares))
            interest = interest - dividends[-1]
        carry.append(interest)
    if same_close:
        holdings_table[len(history)] = shares
        history.append((funds, nothing, nothing))

    all_cash, turnovers, costs = (torch.stack(column) for column in zip(*history, strict=True))
    cost_parts = attributed_costs(venue, first, holdings_table) if venue.has_cost_models and orders is None else {}
    # In place: with many bars, accounts and assets this is the largest table of a backtest.
    values = holdings_table.mul_(close_table.unsqueeze(1))
    equity = all_cash + values.sum(-1)
    weights = values.div_(equity.unsqueeze(-1)).masked_fill_(~(equity > 0).unsqueeze(-1), 0.0)
    return Ledger(
        first=first,
        last=last,
        equity=equity,
        turnover=turnovers,
        costs=costs,
        weights=weights,
        cash=funds,
        shares=shares,
        cost_parts=cost_parts,
        risk_free=None if venue.risk_free is None else venue.risk_free[first:last],
        carry=torch.stack(carry) if venue.has_carry else None,
        dividends=torch.stack(dividends) if venue.has_dividends else None,
        paid=None if orders is None else torch.stack(payments),
        flows=flows,
    )


def _next_true(bars: Bools | None, end: int) -> list[int]:
    """Of each bar [L-1], the first at or after it that is True, or `end`."""
    assert bars is not None
    indices = np.where(bars, np.arange(len(bars)), end)
    next_true: list[int] = np.minimum.accumulate(indices[::-1])[::-1].tolist()
    return next_true


def _held_until(shares: Tensor, delisted: Tensor, i: int) -> int:
    """The bar until which accounts [B, N] keep their holdings from bar i on: i if one has none.

    delisted: [K, N] bool, of the K bars from i on at which nothing is decided. A delisted holding is sold.
    """
    has_shares = shares != 0
    if not bool(has_shares.any(-1).all()):
        return i
    must_sell = delisted[:, has_shares.any(0)].any(-1)
    return i + (int(must_sell.int().argmax()) if bool(must_sell.any()) else len(must_sell))


def _with_exits(orders: IntrabarOrders, venue: Venue, t: int, filled: Fills) -> tuple[Fills, Tensor]:
    """Fills of the decision at bar t with stops and take-profits of their bar, and the value [B, N] of these exits."""
    exit_shares, price = orders.exits(t, filled.shares)
    if not bool((exit_shares > 0).any()):
        return filled, torch.zeros_like(exit_shares)
    exit_fills = venue.fill_trades(t, filled.cash, filled.shares, -exit_shares, price)
    all_fills = Fills(
        exit_fills.cash, exit_fills.shares, filled.cost + exit_fills.cost, filled.traded + exit_fills.traded
    )
    return all_fills, (filled.shares - exit_fills.shares) * price


def _with_sales(venue: Venue, t: int, trades: Tensor, cash: Tensor, saleable: Tensor, price: Tensor) -> Tensor:
    """Trades [B, N] that sell enough, in proportion to the saleable shares [B, N], for cash [B] below zero."""
    net_price = price * (1 - (venue.cost_rate if venue.cost_rates is None else venue.cost_rates[t]))
    sales = (-trades).clamp(min=0)
    remaining_shares = (saleable - sales).clamp(min=0)
    missing = (-cash - (sales * net_price).sum(-1)).clamp(min=0)
    value = (remaining_shares * net_price).sum(-1).clamp(min=torch.finfo(price.dtype).tiny)
    further_sales = remaining_shares * (missing / value).clamp(max=1).unsqueeze(-1)
    if venue.rules.whole_shares:
        further_sales = further_sales.ceil()
    return torch.where((missing > 0).unsqueeze(-1), -(sales + further_sales), trades)


def attributed_costs(venue: Venue, first: int, holdings_table: Tensor) -> dict[str, Tensor]:
    """Costs [L, B] by model name of the fills between holdings [L, B, N] in shares after the fills of each bar."""
    # The bar without a fill is the first, or the last where decisions fill at their own close.
    shares_before = holdings_table[:-1]
    shares_after = holdings_table[1:]
    if venue.same_close:
        shares_before = torch.cat([torch.zeros_like(holdings_table[:1]), shares_before])
        shares_after = holdings_table
    columns: dict[str, list[Tensor]] = defaultdict(list)
    for i in range(0, len(holdings_table) - 1, ATTRIBUTION_BARS):
        bars = torch.arange(i, min(i + ATTRIBUTION_BARS, len(holdings_table) - 1), device=holdings_table.device)
        change = shares_after[bars] - shares_before[bars]
        for name, costs in venue.attribution(first + bars, change, venue.fill[first + bars].unsqueeze(1)).items():
            columns[name].append(costs)
    nothing = torch.zeros_like(holdings_table[:1, :, 0])
    return {
        name: torch.cat([*column, nothing] if venue.same_close else [nothing, *column])
        for name, column in columns.items()
    }


def bar_date(market: MarketTensor, t: int) -> str:
    """Date of a bar, with the time of day for intraday bars, as messages show it."""
    return str(np.datetime_as_string(market.times[t].astype("datetime64[m]"))).removesuffix("T00:00")


def ordered_trades(
    venue: Venue,
    t: int,
    weights: Tensor | None,
    cash: Tensor,
    shares: Tensor,
    close: Tensor,
    availability: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Trades [B, N] in shares towards the target weights of bar t, zero without a target, within the limits.

    availability: the assets that can fill and the delisted ones, [N] bool each, or None if all can fill. Holdings that
    cannot fill are kept, delisted ones are sold. Ruined accounts are closed out.
    """
    rules = venue.rules
    trades = torch.zeros_like(shares) if weights is None else trades_to_weights(weights, cash, shares, close)
    if rules.whole_shares:
        trades = whole_trades(trades, shares)
    if rules.short or rules.borrow:
        trades = torch.where((account_equity(cash, shares, close) > 0).unsqueeze(-1), trades, -shares)
    if availability is not None:
        fillable, delisted = availability
        trades = torch.where(fillable, trades, torch.where(delisted, -shares, torch.zeros_like(shares)))
    if rules.limited:  # holdings that cannot trade count towards the limit
        trades = venue.limit_to_volume(t, trades)
        trades = limit_gross_exposure(trades, cash, shares, close, rules.leverage)
    return trades


def check_weights(market: MarketTensor, t: int, weights: Tensor, rules: ExecutionRules) -> None:
    """Raises InputError naming the date of the bar for invalid target weights [B, N] (see `weights_error`)."""
    if error := weights_error(weights, market.symbols, limit=1.0 + rules.borrow, short=rules.short):
        hint = ""
        if not market.tradable[t].all() and not torch.isfinite(weights).all():
            hint = "; assets without a bar have NaN closes: give weight 0 where window.tradable[-1] is False"
        raise InputError(f"target weights at {bar_date(market, t)} {error}{hint}")


def check_cash(cash: float) -> None:
    """Raises InputError unless the starting cash is above zero and finite."""
    if not (cash > 0 and np.isfinite(cash)):
        raise InputError(f"starting cash must be above zero, got {cash}")
