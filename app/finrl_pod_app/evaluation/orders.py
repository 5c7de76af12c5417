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
from finrl_pod_strategies.mandate_account import ScoredStrategy
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.score_parts import ScoredDecision
from finrl_pod_strategies.user_strategy import UserStrategy
from pydantic import SerializeAsAny

from finrl_pod.data.dates import first_moment, last_moment, stamp
from finrl_pod.data.side_tables import SYMBOL, column_of, read_side_table
from finrl_pod.data.sources.feature_tables import with_newest_tables
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError, InputError, closest_name
from finrl_pod.evaluate.attribution import MIN_TRADE
from finrl_pod.evaluate.backtest import check_weights, decider, ordered_trades
from finrl_pod.evaluate.intrabar_orders import orders_of
from finrl_pod.files import read_regular, write_text
from finrl_pod.market.execution import ExecutionRules, whole_trades
from finrl_pod.market.protocols import MandatedStrategy, StrategyState
from finrl_pod.market.rules import rules_of
from finrl_pod.market.venue import Venue
from finrl_pod.native.device import one_thread
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import champion_of
from finrl_pod.types import Floats, Panel
from finrl_pod.user_files import unpinned
from finrl_pod_app.evaluation.champions import load_champion

MAX_AGE = 5  # trading days
MAX_STATES = 300  # decisions whose virtual holdings are kept


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
class ExplainedRow(OrderRow):
    """An order with its reasons, see `finrl_pod_strategies.score_parts`.

    score: what the strategy decided from. why: contribution of each feature, and "everything else" if it is not 0; they
    add up to the score. Both are None if the strategy sold everything because of turbulence.
    """

    score: float | None
    why: Mapping[str, float] | None


@dataclass(frozen=True)
class AccountOrders:
    """Orders of an account, one row for each symbol. date: bar of the decision. cash_left: after orders and costs."""

    date: str
    cash_left: float
    orders: tuple[SerializeAsAny[OrderRow], ...]

    def to_frame(self) -> pd.DataFrame:
        """The rows."""
        return pd.DataFrame([vars(row) for row in self.orders])

    def to_csv(self) -> str:
        """The rows as CSV; `why` as JSON."""
        frame = self.to_frame()
        if "why" in frame:
            frame["why"] = [json.dumps(reasons) for reasons in frame["why"]]
        return frame.to_csv(index=False)


@dataclass(frozen=True)
class SavedState:
    """Virtual holdings after the decision of a bar (ISO time), an entry of the file beside the holdings."""

    bar: str
    state: StrategyState


@dataclass(frozen=True)
class OrderOptions:
    """Options of `account_orders`.

    cash: currency. date: day of the decision, None for the last bar. whole_shares: cut orders to whole shares. max_age:
    trading days that the last prices may be old without a date. why: rows are `ExplainedRow`.
    """

    cash: float = 0.0
    date: str | None = None
    whole_shares: bool = False
    max_age: int = MAX_AGE
    why: bool = False


def run_champion(folder: Path) -> tuple[PolicyStrategy, RunConfig]:
    """The champion of a run, and the config of the run."""
    run = RunDirectory.open(folder)
    return load_champion(run, champion_of(run, run.config)), run.config


@torch.no_grad()
@one_thread()
def account_orders(
    strategy: Strategy,
    config: RunConfig,
    panel: Panel,
    holdings: Mapping[str, float] | Path | None,
    options: OrderOptions,
    state: StrategyState | None = None,
) -> AccountOrders:
    """Orders of a strategy for an account on prices under the rules of a config.

    holdings: shares by symbol, or a CSV file with columns symbol and shares. Beside a file, FILE.state.json keeps the
    virtual holdings of a mandate for the next decision. state: virtual holdings before the decision for other holdings.
    Without either they start as in a backtest.

    Raises DataError for prices that are too old and a date without a bar, InputError for holdings that are none, and
    for reasons of a strategy without scores.
    """
    if orders_of(strategy) is not None:
        raise InputError(
            f"strategy {strategy.name} has stops or limits, and they depend on the prices of the next bar: place them "
            "at your broker, and leave out its `orders` here"
        )
    account = strategy.inner if isinstance(strategy, UserStrategy) else strategy
    if options.why and not has_scores(strategy):
        raise InputError(
            f"the strategy {strategy.name} has no scores that could be explained: leave out why, or ask a run"
        )
    rules = rules_of(dataclasses.replace(config.environment, fill="same_close", delay=1))
    t = _bar_of(panel, options.date)
    shares = torch.from_numpy(_held_shares(holdings, panel, short=rules.short)).unsqueeze(0)
    cash = torch.tensor([options.cash], dtype=torch.float64)
    last_bars = _last_bars(panel, t, shares[0].numpy(), options)
    if isinstance(strategy, PolicyStrategy):
        strategy.check_universe(panel.symbols)
    panel = with_newest_tables(panel, strategy)
    market = build_market(panel, strategy.feature_names, (0, len(panel.times) - 1), "same_close")
    venue = Venue(market, rules, torch.float64)
    close = market.close[t].double()
    equity = _checked_equity(options.cash, float((shares * close).sum()), rules)
    state_file = holdings.with_suffix(".state.json") if isinstance(holdings, Path) else None
    states = _restore(account, state_file, panel, t) if isinstance(account, MandatedStrategy) else []
    if state is not None and isinstance(account, MandatedStrategy):
        account.restore(state, panel.symbols)

    weights = decider(strategy, panel, market, t, t)(t, cash.clone(), shares.clone())
    if weights is not None:
        check_weights(market, t, weights, rules)
    is_delisted = market.delisted[t]
    if t == len(panel.times) - 1:  # a symbol without this bar may have a later one
        is_delisted = is_delisted & torch.from_numpy(panel.tradable[t])
    trades = ordered_trades(venue, t, weights, cash, shares, close, (market.fillable[t], is_delisted))
    price = venue.fill[t]
    fills = venue.fill_trades(t, cash, shares, trades, price)
    if options.whole_shares:
        whole_venue = Venue(market, dataclasses.replace(rules, whole_shares=True), torch.float64)
        fills = whole_venue.fill_trades(t, cash, shares, whole_trades(fills.shares - shares, shares), price)
    change = (fills.shares - shares)[0]
    if options.whole_shares or rules.whole_shares:  # holdings may have fractions, and their difference rounding errors
        change = change.round()
    change = torch.where((change * price).abs() > MIN_TRADE * equity, change, 0.0)
    targets = (shares * close / equity if weights is None else weights)[0]
    dates = [stamp(panel.times[bar], panel.bar) if bar >= 0 else None for bar in last_bars]
    prices = [float(x) if date else None for x, date in zip(price, dates, strict=True)]
    costs = venue.asset_costs(t, change, price)
    columns = (shares[0].tolist(), targets.tolist(), change.tolist(), prices, dates, costs.tolist())
    rows = tuple(OrderRow(*values) for values in zip(panel.symbols, *columns, strict=True))
    if options.why and isinstance(account, ScoredStrategy):
        rows = _with_reasons(rows, account.scored_decision)

    new_state = account.state() if isinstance(account, MandatedStrategy) else None
    if new_state is not None and state_file is not None:
        states = sorted((*states, SavedState(str(panel.times[t]), new_state)), key=lambda entry: entry.bar)
        entries = [vars(entry) for entry in states[-MAX_STATES:]]
        write_text(state_file, json.dumps(entries, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return AccountOrders(stamp(panel.times[t], panel.bar), float(fills.cash[0]), rows)


def has_scores(strategy: Strategy) -> bool:
    """Whether the decisions of a strategy come from scores that its features explain."""
    account = strategy.inner if isinstance(strategy, UserStrategy) else strategy
    return isinstance(account, ScoredStrategy) and bool(strategy.feature_names)


def _with_reasons(rows: tuple[OrderRow, ...], decision: ScoredDecision | None) -> tuple[ExplainedRow, ...]:
    """Orders with the score of each symbol and its parts. decision: the decision that they come from."""
    if decision is None:
        return tuple(ExplainedRow(**vars(row), score=None, why=None) for row in rows)
    parts = decision.parts()
    names = [unpinned(name) for name in parts.features]
    return tuple(
        ExplainedRow(**vars(row), score=score, why=dict(zip(names, contributions, strict=True)))
        for row, score, contributions in zip(rows, parts.scores.tolist(), parts.contributions.tolist(), strict=True)
    )


def _restore(account: MandatedStrategy, file: Path | None, panel: Panel, t: int) -> list[SavedState]:
    """Restore the virtual holdings of the last decision before bar t, and return those of all other bars.

    A decision that is repeated continues from the same virtual holdings, and one on an earlier day leaves later days
    alone. Raises InputError for a damaged file.
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
    return [entry for entry in states if np.datetime64(entry.bar) != panel.times[t]]


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


def _last_bars(panel: Panel, t: int, shares: Floats, options: OrderOptions) -> list[int]:
    """The last bar [N] of each symbol up to bar t, -1 without one. shares: holdings [N].

    Raises DataError for a holding without a price and, without a date, for prices that are too old.
    """
    past = panel.tradable[: t + 1]
    last_bars: list[int] = np.where(past.any(0), t - past[::-1].argmax(0), -1).tolist()
    prices = [(f"the prices of {panel.name!r}", t)]
    for n in np.flatnonzero(shares):
        if last_bars[n] < 0:
            raise DataError(f"{panel.symbols[n]} is held, and {panel.name!r} has no price of it up to this bar")
        prices.append((f"the prices of the holding {panel.symbols[n]}", last_bars[n]))
    today = datetime.now(UTC).date()
    for subject, bar in prices if options.date is None else ():
        day = panel.times[bar].astype("datetime64[D]")
        if day > np.datetime64(today) + 1:
            raise DataError(f"{subject} end on {day}, which has not come yet: correct the file and import it again")
        if np.busday_count(day, today) > options.max_age:
            raise DataError(
                f"{subject} end on {day}, more than {options.max_age} trading days ago: update them, raise --max-age "
                "(max_age= in Python), or name the day with --date (date=)"
            )
    return last_bars


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


def _checked_equity(cash: float, value: float, rules: ExecutionRules) -> float:
    """The equity of an account whose holdings have a value.

    Raises InputError for cash that is no number, a loan that the rules forbid, and an account without money.
    """
    loan = -cash if cash < -MIN_TRADE * value else 0.0  # less is rounding
    if not math.isfinite(cash) or (loan and not (rules.borrow or rules.short)):
        raise InputError(f"cash must be a number of at least 0, got {cash:g}")
    if cash + value <= 0:
        raise InputError(f"holdings and cash are worth {cash + value:.2f}; give holdings or cash above 0")
    return cash + value
