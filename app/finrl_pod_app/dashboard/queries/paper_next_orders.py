"""Orders of the next decision of each strategy of a paper account, on stored prices, with their reasons."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from finrl_pod.data.panel import select
from finrl_pod.errors import DataError, InputError
from finrl_pod.paper.domain.schedule import calendar_of
from finrl_pod.paper.settings import PaperConfig, allocations
from finrl_pod.settings.run import DataConfig, RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Panel
from finrl_pod.user_files import is_custom
from finrl_pod_app.dashboard.queries.paper_account import SHARE_DIGITS, booked_changes, books
from finrl_pod_app.dashboard.queries.paper_journal import CACHED_JOURNALS, Journal, strategy_name
from finrl_pod_app.evaluation.orders import AccountOrders, ExplainedRow, OrderOptions, account_orders, has_scores
from finrl_pod_app.paper.sources import PromotedRun, strategy_source
from finrl_pod_app.prices.stored_prices import load_panel

MAX_REASONS = 3  # of an order, the largest first


@dataclass(frozen=True, eq=False)
class NextOrders:
    """Orders of one strategy. date: bar of the decision. is_repeated: the daemon has decided on that bar already.

    orders: symbol, held, target_weight, shares (negative to sell), price, value, cost, score and why (text), the
    largest value first; only symbols with a target, shares or an order. cash_left: after them.
    """

    date: str
    is_repeated: bool
    orders: pd.DataFrame
    cash_left: float


def next_orders(journal: Journal, strategy: str, now: datetime) -> NextOrders:
    """Orders of a strategy of the config for its holdings at the last close before `now`, on stored prices.

    The virtual holdings of a mandate come from the journal. Raises InputError for a strategy from a file, whose code
    a page does not run, and for decisions within the session; DataError if the stored prices end before the last
    decision; other FinrlPodError if the strategy cannot be loaded.
    """
    if journal.config is None:
        raise InputError("the journal has no settings: start the daemon once with this version")
    return _next_orders(journal, strategy, calendar_of(journal.config).last_closed(now).date.isoformat())


@lru_cache(maxsize=CACHED_JOURNALS)
def _next_orders(journal: Journal, strategy: str, last_session: str) -> NextOrders:
    config = _allocation(journal, strategy)
    if config.intraday.minutes:
        raise InputError("decisions within the session need minute bars, and stored panels have daily ones")
    if is_custom(config.strategy):
        raise InputError(
            f"{config.strategy:.80} is code of a file, and pages run none: use finrl-pod orders --strategy "
            f"{config.strategy:.80} --data PANEL --holdings FILE.csv --why"
        )
    run = _run_config(config)
    panel = select(load_panel(run), config.symbols)
    date = _last_bar(panel, last_session)
    decided = journal.decisions[journal.decisions.strategy == strategy]
    last_decision = str(decided.bar.max()) if len(decided) else ""
    if date < last_decision:
        raise DataError(
            f"the prices of {panel.name!r} end on {date}, before the last decision on {last_decision}: update them"
        )
    agent = strategy_source(config, allow_unpromoted=True).current().strategy
    changes = booked_changes(journal)
    changes = changes[(changes.strategy == strategy) & (changes.symbol != "")]
    held = changes.groupby("symbol").shares.sum().round(SHARE_DIGITS)
    cash = float(books(journal).set_index("strategy").cash[strategy])
    options = OrderOptions(
        cash=max(cash, 0.0), date=date, whole_shares=not config.orders.fractional, why=has_scores(agent)
    )
    holdings = {str(symbol): float(shares) for symbol, shares in held[held != 0].items()}
    earlier = decided[(decided.bar < date) & decided.state.notna()]
    state = json.loads(earlier.state.iloc[-1])["strategy"] if len(earlier) else None
    result = account_orders(agent, run, panel, holdings, options, state)
    return NextOrders(result.date, date == last_decision, _order_table(result), result.cash_left)


def _allocation(journal: Journal, strategy: str) -> PaperConfig:
    """Config of one strategy. Raises InputError for a name that is not in the config."""
    if journal.config is not None:
        for part in allocations(journal.config):
            if strategy_name(journal.config, part.name) == strategy:
                return part
    raise InputError(f"{strategy!r:.80} is no strategy of the account")


def _run_config(config: PaperConfig) -> RunConfig:
    """Rules and panel of a traded run; defaults and the panel of the settings for other strategies."""
    if config.run:
        report = PromotedRun(Path(config.run), config.symbols, allow_unpromoted=True).newest_report()
        run = RunDirectory.open(report.parent).config
        return replace(run, data=replace(run.data, symbols=()))
    return replace(RunConfig(), data=DataConfig(config.broker.panel))


def _last_bar(panel: Panel, last_session: str) -> str:
    """Last bar of a panel up to a session. Raises DataError without one."""
    days = panel.times.astype("datetime64[D]")
    t = int(np.searchsorted(days, np.datetime64(last_session), side="right")) - 1
    if t < 0:
        raise DataError(f"{panel.name!r} has no bar up to {last_session}")
    return str(days[t])


def _order_table(result: AccountOrders) -> pd.DataFrame:
    frame = result.to_frame()
    frame["value"] = frame.shares * frame.price.fillna(0.0)
    frame["score"] = [row.score if isinstance(row, ExplainedRow) else None for row in result.orders]
    frame["why"] = [_reasons(row) if isinstance(row, ExplainedRow) else "" for row in result.orders]
    frame = frame[(frame.held != 0) | (frame.shares != 0) | (frame.target_weight.abs() > 0)]
    return frame.sort_values("value", key=abs, ascending=False, kind="stable", ignore_index=True)


def _reasons(row: ExplainedRow) -> str:
    """The largest contributions to a score, with their signs."""
    largest = sorted((row.why or {}).items(), key=lambda item: -abs(item[1]))[:MAX_REASONS]
    return ", ".join(f"{name} {value:+.3g}" for name, value in largest)
