"""Definitions of statistics that are not metrics, for tooltips, and the columns of the tables of pages."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st
from streamlit.elements.lib.column_types import ColumnConfig

from finrl_pod.evaluate.metrics import METRIC_BY_NAME, METRICS
from finrl_pod_app.dashboard.theme import EXCHANGE_ZONE

column = st.column_config
ZONE = EXCHANGE_ZONE.key
SHARES = "localized"
Columns = dict[str, ColumnConfig]  # by column of a frame, in their order
FORMATS = {"percent": "percent", "ratio": "%.2f", "currency": "localized", "times": "%.2f×", "count": "%.1f"}  # by unit
DEFINITIONS = {
    "backtest_difference": "Growth of the paper account minus growth of the replayed backtest over the same sessions.",
    "implementation_shortfall": "Fill price against the reference price of the decision, in basis points (1 bp = "
    "0.01%). Includes the move of the market in between. Positive is a cost.",
    "validation_score": "Sharpe ratio on the validation period, by which the tournament selects its champion. The "
    "test period is not used.",
    "samples_per_second": "Environment steps per second over all agents, including the time for learning.",
    "trials": "Strategies ever evaluated on this data. More trials raise the best Sharpe ratio by chance; the "
    "deflated Sharpe ratio corrects for it.",
    "distinct_trials": "Clusters among the trials: trials that behave alike count as one.",
    "effective_trials": "Independent trials whose best gains as much by chance; the p-value allows for them.",
    "looks": "How often results on the test period were viewed. Each further look makes a chance success more likely, "
    "so the rules become stricter.",
    "psr": "Probabilistic Sharpe ratio: 1 less the p-value of the test that the true Sharpe ratio is zero or less, "
    "given length, skewness and kurtosis. Not the probability that it is positive (Bailey and López de Prado 2012).",
    "dsr": "Deflated Sharpe ratio: the probabilistic Sharpe ratio against the best of as many chance trials as were "
    "counted (Bailey and López de Prado 2014).",
    "pbo": "Probability of backtest overfitting: how often the best trial on one half of the period ranks below the "
    "median on the other half (Bailey et al. 2017).",
    "interval": "Confidence interval (90%) from the stationary bootstrap (Politis and Romano 1994).",
}


def definition(key: str) -> str:
    """The definition of a metric or of another statistic. Raises KeyError if there is none."""
    return METRIC_BY_NAME[key].definition if key in METRIC_BY_NAME else DEFINITIONS[key]


def validation_columns() -> Columns:
    """Column configuration of the metrics on validation of a table of runs."""
    return {
        f"validation.{metric.name}": column.NumberColumn(
            f"{metric.label}, validation", format=FORMATS[metric.unit.name], help=metric.definition
        )
        for metric in METRICS
    }


def _text(label: str, width: Any = None, **options: Any) -> ColumnConfig:
    return column.TextColumn(label, width=width, **options)


def _number(label: str, form: str, **options: Any) -> ColumnConfig:
    return column.NumberColumn(label, format=form, **options)


def label_column(label: str) -> ColumnConfig:
    """Column of the names of rows."""
    return _text(label, "medium", pinned=True)


_time = partial(column.DatetimeColumn, format="YYYY-MM-DD HH:mm:ss z", timezone=ZONE)


RUN_COLUMNS: Columns = {
    "name": column.TextColumn("Run", pinned=True, width="medium"),
    "status": column.TextColumn("Status"),
    "promoted": column.TextColumn("Verdict", help="Whether the champion passed every promotion rule."),
    "score": column.NumberColumn("Validation score", format="%.2f", help=definition("validation_score")),
    "tags": column.ListColumn("Tags"),
    "algorithm": column.TextColumn("Algorithm"),
    "data": column.TextColumn("Data", help="Price dataset."),
    "changed": column.DatetimeColumn("Updated", format="MMM D, HH:mm z", help="In your time zone."),
}
# Columns of the tables of `queries.paper_account`, `paper_performance`, `paper_state` and the journal.
POSITIONS: Columns = {
    "symbol": _text("Symbol", "small", pinned=True),
    "shares": _number("Shares", SHARES),
    "value": _number("Value", "dollar"),
    "weight": _number("Weight", "percent", help="Value over equity."),
    "target": _number("Target", "percent", help="Target weight of the last decision, summed over the strategies."),
    "distance": _number("Distance", "percent", help="Weight less target."),
    "price": _number("Price", "dollar", help="At the last decision."),
    "average": _number("Average cost", "dollar", help="Average purchase price per share."),
    "gain": _number("Unrealised gain", "dollar", help="Value less cost."),
    "gain_share": _number("Unrealised, %", "percent", help="Unrealised gain over cost."),
    "realised": _number("Realised gain", "dollar", help="Sales at average cost, plus dividends, less fees."),
}
STRATEGIES: Columns = {
    "strategy": _text("Strategy", pinned=True),
    "definition": _text("Decided by"),
    "equity": _number("Equity", "dollar"),
    "share": _number("Share", "percent", help="Of the account equity."),
    "value": _number("Positions", "dollar"),
    "cash": _number("Cash", "dollar"),
}
PROFIT_AMOUNTS: Columns = {
    "prices": _number("Prices", "dollar", help="Changes in value and trades, at fill prices."),
    "dividends": _number("Dividends", "dollar", help="As credited by the broker."),
    "costs": _number("Costs", "dollar", help="Fees of the broker. The view Costs has the implementation shortfall."),
}
PROFIT: Columns = {
    "profit": _number("Profit", "dollar", help="Change in equity without deposits and withdrawals."),
    "return": _number("Return", "%+.2f%%", help="Time-weighted: profit over the equity at the start of the day."),
    **PROFIT_AMOUNTS,
    "flow": _number("Deposits", "dollar", help="Deposits less withdrawals; no profit."),
    "equity": _number("Equity", "dollar", help="At the last close."),
}
CONTRIBUTION = _number(
    "Contribution",
    "%+.2f%%",
    help="To the return of the period, in points: daily profit over the account equity at the start of the day. The "
    "contributions add up to the return.",
)
STRATEGY_PARTS: Columns = {
    "name": _text("Part"),
    "strategy": _text("Strategy"),
    "equity": _number("Equity", "dollar"),
    "backtest": _number("Backtest", "dollar"),
    "difference": _number("Difference", "dollar", help="Equity of the account minus the backtest."),
}
STRATEGY = _text("Strategy", "small")
OPEN_INTENTS: Columns = {
    "symbol": _text("Symbol", "small", pinned=True),
    "strategy": STRATEGY,
    "side": _text("Side", "small"),
    "intended": _number("Quantity", SHARES),
    "filled": _number("Filled", SHARES),
    "order": _text("Order"),
    "deadline": _time("Deadline"),
}
ORDERS: Columns = {
    "at": _time("Created"),
    "strategy": STRATEGY,
    "symbol": _text("Symbol", "small"),
    "side": _text("Side", "small"),
    "quantity": _number("Shares", SHARES),
    "filled": _number("Filled", SHARES),
    "average": _number("Average price", "dollar"),
    "limit_price": _number("Limit price", "dollar"),
    "time_in_force": _text("Time in force", "small", help="opg, cls: opening or closing auction; day: session."),
    "state": _text("State", "small", help="Status at the broker, or why it does not know the order."),
    "detail": _text("Detail"),
    "client_order_id": _text("Client order ID"),
}
FILLS: Columns = {
    "time": _time("Time"),
    "strategy": STRATEGY,
    "symbol": _text("Symbol", "small"),
    "side": _text("Side", "small"),
    "quantity": _number("Shares", SHARES),
    "price": _number("Price", "dollar"),
    "value": _number("Value", "dollar"),
    "fee": _number("Fee", "dollar"),
    "slippage": _number("Shortfall, bp", "%.1f", help=definition("implementation_shortfall")),
    "source": _text("Source", "small", help="How the daemon received it: the stream of the broker or a poll."),
    "client_order_id": _text("Client order ID"),
}
NEXT_ORDERS: Columns = {
    "symbol": _text("Symbol", "small", pinned=True),
    "held": _number("Held", SHARES),
    "target_weight": _number("Target", "percent", help="Weight in the part of the strategy."),
    "shares": _number("Buy or sell", SHARES, help="Shares; negative to sell."),
    "price": _number("Price", "dollar", help="Close that the order is sized on."),
    "value": _number("Value", "dollar"),
    "cost": _number("Expected cost", "dollar"),
}
REASONS: Columns = {
    "score": _number("Score", "%.3f", help="What the strategy decides from."),
    "why": _text("Largest contributions", "large", help="Of features to the score; all of them add up to it."),
}
PRICE_FILLS: Columns = {name: FILLS[name] for name in ("time", "strategy", "side", "quantity", "price")}
SLIPPAGE: Columns = {
    "fills": _number("Fills", SHARES),
    "value": _number("Value traded", "dollar"),
    "cost": _number("Shortfall", "dollar", help="Against the prices at the decision; negative is a gain."),
    "bp": _number("Shortfall, bp", "%.1f", help=definition("implementation_shortfall")),
    "low": _number("From, bp", "%.1f", help="The 95% interval, over independent sessions."),
    "high": _number("To, bp", "%.1f"),
    "modelled": _number("Modelled, bp", "%.1f", help="`broker.cost_bps` in the settings."),
}
LIMITS: Columns = {
    "limit": _text("Limit", "medium", pinned=True),
    "used": _number("Current", "percent"),
    "allowed": _number("Allowed", "percent"),
    "share": column.ProgressColumn("Used", format="percent", min_value=0.0, max_value=1.0),
}
RISK: Columns = {"at": _time("Since"), "state": _text("State", "small"), "reason": _text("Reason", "large")}
HALTS: Columns = {"symbol": _text("Symbol", "small"), "at": _time("Since"), "reason": _text("Reason", "large")}
COMMANDS: Columns = {
    "at": _time("Time"),
    "name": _text("Command", "small"),
    "user": _text("User", "small"),
    "address": _text("Address", "small"),
    "outcome": _text("Outcome", "large"),
    "answered": _time("Answered"),
}
ALERTS: Columns = {
    "at": _time("Time"),
    "level": _text("Level", "small"),
    "kind": _text("Kind", "small"),
    "message": _text("Message", "large"),
}
DECISIONS: Columns = {
    "bar": _text("Session", "small"),
    "at": _time("Time"),
    "strategy": STRATEGY,
    "outcome": _text("Outcome", "small"),
    "definition": _text("Decided by"),
    "feed": _text("Feed", "small"),
    "detail": _text("Skipped symbols and reasons", "large"),
}
EXTERNAL: Columns = {"symbol": _text("Symbol", "small"), "shares": _number("Shares", SHARES)}
