"""Orders of an account after the close of one bar: `finrl-pod orders` and `fp.orders`.

They are one decision of a backtest on holdings of the user: the code of `finrl_pod.evaluate.backtest` decides and
sizes them. The fill price is not known yet, so they are counted and paid for at the close.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import UserStrategy

from finrl_pod.data.dates import first_moment, last_moment, stamp
from finrl_pod.data.side_tables import SYMBOL, column_of, read_side_table
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError, InputError, closest_name
from finrl_pod.evaluate.attribution import MIN_TRADE
from finrl_pod.evaluate.backtest import check_weights, decider, ordered_trades
from finrl_pod.evaluate.intrabar_orders import orders_of
from finrl_pod.files import read_regular, write_text
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.market.protocols import MandatedStrategy, StrategyState
from finrl_pod.market.rules import rules_of
from finrl_pod.market.venue import Venue
from finrl_pod.native.device import one_thread
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import champion_of
from finrl_pod.types import Floats, MarketTensor, Panel
from finrl_pod_app.evaluation.champions import load_champion

MAX_AGE = 5  # trading days


@dataclass(frozen=True)
class OrderRow:
    """A symbol after a decision, amounts in currency.

    held: shares before. target_weight: fraction of equity. shares: number to buy; negative to sell. price: close that
    sizes the order. price_date: bar of the price; both are None before the first bar of the symbol. cost: expected.
    """

    symbol: str
    held: float
    target_weight: float
    shares: float
    price: float | None
    price_date: str | None
    cost: float


@dataclass(frozen=True)
class AccountOrders:
    """Orders of an account, one row for each symbol. date: bar of the decision. cash_left: after orders and costs."""

    date: str
    cash_left: float
    orders: tuple[OrderRow, ...]

    def to_frame(self) -> pd.DataFrame:
        """The rows."""
        return pd.DataFrame([vars(row) for row in self.orders])


@dataclass(frozen=True)
class SavedState:
    """Virtual holdings after the decision of a bar (ISO time), an entry of the file beside the holdings."""

    bar: str
    state: StrategyState


@dataclass(frozen=True)
class OrderOptions:
    """Options of `account_orders`.

    cash: currency. date: day of the decision, None for the last bar. whole_shares: cut orders to whole shares. max_age:
    trading days that the last prices may be old without a date.
    """

    cash: float = 0.0
    date: str | None = None
    whole_shares: bool = False
    max_age: int = MAX_AGE


def run_champion(folder: Path) -> tuple[PolicyStrategy, RunConfig]:
    """The champion of a run, and the config of the run."""
    run = RunDirectory.open(folder)
    return load_champion(run, champion_of(run, run.config)), run.config


def account_orders(
    strategy: Strategy,
    config: RunConfig,
    panel: Panel,
    holdings: Mapping[str, float] | Path | None,
    options: OrderOptions,
) -> AccountOrders:
    """Orders of a strategy for an account on prices under the rules of a config.

    holdings: shares by symbol, or a CSV file with columns symbol and shares. Beside a file, FILE.state.json keeps the
    virtual holdings of a mandate for the next decision; without one they start as in a backtest.

    Raises DataError for prices that are too old and a date without a bar, InputError for holdings that are none.
    """
    if orders_of(strategy) is not None:
        raise InputError(
            f"strategy {strategy.name} has stops or limits, and they depend on the prices of the next bar: place them "
            "at your broker, and leave out its `orders` here"
        )
    environment = dataclasses.replace(config.environment, fill="same_close", delay=1)
    rules = rules_of(environment)
    t = _bar_of(panel, options.date)
    shares = _held_shares(holdings, panel, short=rules.short)
    last_bars = _last_bars(panel, t)
    _check_ages(panel, t, shares, last_bars, options)
    if isinstance(strategy, PolicyStrategy):
        strategy.check_universe(panel.symbols)
    market = build_market(panel, strategy.feature_names, (0, len(panel.times) - 1), "same_close")
    _check_money(options.cash, float(shares @ market.close[t].double().numpy()), rules)
    file = holdings.with_suffix(".state.json") if isinstance(holdings, Path) else None
    account = strategy.inner if isinstance(strategy, UserStrategy) else strategy
    if not isinstance(account, MandatedStrategy):
        return _decided_orders(strategy, panel, market, t, rules, shares, last_bars, options)
    previous_states = _restore(account, file, panel, t)
    orders = _decided_orders(strategy, panel, market, t, rules, shares, last_bars, options)
    state = account.state()
    if state is not None and file is not None:
        states = [vars(entry) for entry in (*previous_states, SavedState(str(panel.times[t]), state))]
        write_text(file, json.dumps(states, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return orders


@torch.no_grad()
@one_thread()
def _decided_orders(
    strategy: Strategy,
    panel: Panel,
    market: MarketTensor,
    t: int,
    rules: ExecutionRules,
    shares: Floats,
    last_bars: np.ndarray,
    options: OrderOptions,
) -> AccountOrders:
    """The decision at bar t as orders at the prices of the bar.

    market: a market whose decisions fill at their own close. shares, last_bars: [N], holdings and `_last_bars`.
    """
    venue = Venue(market, rules, torch.float64)
    close = market.close[t].double()
    price = venue.fill[t]
    cash = torch.tensor([options.cash], dtype=torch.float64)
    holdings = torch.from_numpy(shares).unsqueeze(0)
    equity = cash + (holdings * close).sum(-1)
    weights = decider(strategy, panel, market, t, t)(t, cash.clone(), holdings.clone())
    if weights is not None:
        check_weights(market, t, weights, rules)
    is_delisted = market.delisted[t]
    if t == len(panel.times) - 1:  # a symbol without this bar may have a later one
        is_delisted = is_delisted & torch.from_numpy(panel.tradable[t])
    trades = ordered_trades(venue, t, weights, cash, holdings, close, (market.fillable[t], is_delisted))
    fills = venue.fill_trades(t, cash, holdings, trades, price)
    if options.whole_shares:
        whole_venue = Venue(market, dataclasses.replace(rules, whole_shares=True), torch.float64)
        fills = whole_venue.fill_trades(t, cash, holdings, fills.shares - holdings, price)
    change = fills.shares - holdings
    change = torch.where((change * price).abs() > MIN_TRADE * equity, change, 0.0)
    costs = venue.asset_costs(t, change[0], price)
    targets = (holdings * close / equity if weights is None else weights)[0]
    rows = []
    for n, symbol in enumerate(panel.symbols):
        has_price = last_bars[n] >= 0
        rows.append(
            OrderRow(
                symbol=symbol,
                held=float(shares[n]),
                target_weight=float(targets[n]),
                shares=float(change[0, n]),
                price=float(price[n]) if has_price else None,
                price_date=stamp(panel.times[last_bars[n]], panel.bar) if has_price else None,
                cost=float(costs[n]),
            )
        )
    return AccountOrders(stamp(panel.times[t], panel.bar), float(fills.cash[0]), tuple(rows))


def _restore(account: MandatedStrategy, file: Path | None, panel: Panel, t: int) -> list[SavedState]:
    """Restore the virtual holdings of the last decision before bar t, and return it; an empty list if there is none.

    A decision that is repeated continues from the same virtual holdings. Raises InputError for a damaged file.
    """
    try:
        entries = json.loads(read_regular(file)) if file is not None and file.exists() else []
        states = [SavedState(**entry) for entry in entries]
        earlier_states = [entry for entry in states if np.datetime64(entry.bar) < panel.times[t]]
        account.restore(earlier_states[-1].state if earlier_states else None, panel.symbols)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{file} holds no virtual holdings: restore it, or remove it to start from the holdings"
        ) from error
    return earlier_states[-1:]


def _bar_of(panel: Panel, date: str | None) -> int:
    """The bar of a date, or the last one. Raises DataError for a date without a bar."""
    if date is None:
        return len(panel.times) - 1
    end = last_moment(date, "the date").to_datetime64()
    t = int(np.searchsorted(panel.times, end, side="right")) - 1
    if t < 0 or panel.times[t] < first_moment(date, "the date").to_datetime64():
        span = " to ".join(stamp(panel.times[i], panel.bar) for i in (0, -1))
        before = f"; the bar before is {stamp(panel.times[t], panel.bar)}" if t >= 0 else ""
        raise DataError(f"{panel.name!r} has no bar on {date}, its bars are {span}{before}")
    return t


def _last_bars(panel: Panel, t: int) -> np.ndarray:
    """[N] the last bar of each symbol up to bar t, -1 without one."""
    past = panel.tradable[: t + 1]
    return np.where(past.any(0), t - past[::-1].argmax(0), -1)


def _check_ages(panel: Panel, t: int, shares: Floats, last_bars: np.ndarray, options: OrderOptions) -> None:
    """Raises DataError for a holding without a price and, without a date, for prices that are too old."""
    prices = [(f"the prices of {panel.name!r}", t)]
    for n in np.flatnonzero(shares):
        if last_bars[n] < 0:
            raise DataError(f"{panel.symbols[n]} is held, and {panel.name!r} has no price of it up to this bar")
        prices.append((f"the prices of the holding {panel.symbols[n]}", int(last_bars[n])))
    today = datetime.now(UTC).date()
    for subject, bar in prices if options.date is None else ():
        day = panel.times[bar].astype("datetime64[D]")
        if np.busday_count(day, today) > options.max_age:
            raise DataError(
                f"{subject} end on {day}, more than {options.max_age} trading days ago: update them, raise --max-age, "
                "or name the day with --date"
            )


def _held_shares(holdings: Mapping[str, float] | Path | None, panel: Panel, *, short: bool) -> Floats:
    """Shares [N] of the symbols, 0 if not held.

    Raises InputError for symbols that are unknown or there twice, and for shares that are negative or no number;
    DataError for a file that cannot be read.
    """
    source = "holdings"
    pairs: Iterable[tuple[str, object]] = ()
    if isinstance(holdings, Path):
        source = str(holdings)
        table = read_side_table(holdings, "holdings")
        symbols = column_of(table, SYMBOL)
        counts = column_of(table, ("shares",))
        if symbols is None or counts is None:
            raise DataError(f"{source} must have the columns symbol and shares, got {', '.join(table.columns)}")
        pairs = zip(symbols, counts, strict=True)
    elif holdings is not None:
        pairs = holdings.items()
    column = {symbol: n for n, symbol in enumerate(panel.symbols)}
    shares = np.full(len(column), np.nan)
    for symbol, count in pairs:
        if symbol not in column:
            close = closest_name(str(symbol), column)
            hint = f"did you mean {close}?" if close else "leave it out"
            raise InputError(f"{source}: {symbol!r:.80} is no symbol of {panel.name!r}; {hint}")
        if not np.isnan(shares[column[symbol]]):
            raise InputError(f"{source}: {symbol} stands there twice; give all its shares in one row")
        try:
            number = float(str(count))
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or (number < 0 and not short):
            rule = "a number" if short else "a number of at least 0"
            raise InputError(f"{source}: the shares of {symbol} must be {rule}, got {str(count)!r:.80}")
        shares[column[symbol]] = number
    shares_held: Floats = np.nan_to_num(shares)
    return shares_held


def _check_money(cash: float, value: float, rules: ExecutionRules) -> None:
    """Raises InputError for cash that is no number, for a loan that the rules forbid, and for an account without money.

    value: value of the holdings.
    """
    loan = -cash if cash < -MIN_TRADE * value else 0.0  # less is rounding
    if not math.isfinite(cash) or (loan and not (rules.borrow or rules.short)):
        raise InputError(f"cash must be a number of at least 0, got {cash:g}")
    if cash + value <= 0:
        raise InputError(f"holdings and cash are worth {cash + value:.2f}; give holdings or cash above 0")
