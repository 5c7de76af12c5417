"""The end-of-day summary: what an account did in a session, in a few lines for every alert channel."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from finrl_pod.errors import count_text
from finrl_pod.paper.domain.flows import NOW
from finrl_pod.paper.domain.order_state import OrderState
from finrl_pod.paper.domain.records import ActionKind, Session, Side
from finrl_pod.paper.execution.sizing import account_distance
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.capital_flows import adjusted_equity
from finrl_pod.paper.journal.ledger import Ledger, market_value
from finrl_pod.paper.journal.store import stamp
from finrl_pod.paper.settings import PaperConfig, allocations

MOST_SYMBOLS = 20  # that are named, the largest profits and losses first
ZERO = Decimal(0)


@dataclass(frozen=True)
class DaySummary:
    """One session of an account. Amounts in currency.

    day_return: return since the previous mark, without flows. drawdown: loss since the highest mark. profits: profit of
    positions and trades by symbol since the previous close. strategies: equity of each of several by name.
    orders: number sent in the session by last known
    state. distance: value that open targets miss as a share of equity. differences: between
    account and journal. has_prices: False if the previous closes are used.
    """

    session: Session
    equity: Decimal
    day_return: float
    drawdown: float
    profits: Mapping[str, Decimal]
    strategies: Mapping[str, Decimal]
    orders: Mapping[str, int]
    fills: int
    distance: float
    differences: Sequence[str]
    next_decision: datetime
    has_prices: bool = True

    def text(self) -> str:
        """The summary in lines; the first has date, equity and return."""
        by_size = sorted(self.profits.items(), key=lambda item: -abs(item[1]))
        profits = ", ".join(f"{symbol} {value:+,.2f}" for symbol, value in by_size[:MOST_SYMBOLS])
        omitted_text = f" and {len(by_size) - MOST_SYMBOLS} more" if len(by_size) > MOST_SYMBOLS else ""
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.orders.items()))
        strategy_texts = ", ".join(f"{name} {equity:,.2f}" for name, equity in self.strategies.items())
        lines = [
            f"{self.session.date}: equity {self.equity:,.2f}, {self.day_return:+.2%} today, "
            f"{self.drawdown:.2%} below the peak",
            f"strategies: {strategy_texts}" if strategy_texts else "",
            f"P/L by symbol: {profits or 'none'}{omitted_text}",
            f"orders: {states or 'none'}; {count_text(self.fills, 'fill')}",
            f"distance to target: {self.distance:.2%} of equity",
            f"account and journal: {'; '.join(self.differences) or 'no differences'}",
            f"next decision: {self.next_decision:%Y-%m-%d %H:%M} UTC",
            "" if self.has_prices else "prices of the close were not available: the previous closes are used",
        ]
        return "\n".join(line for line in lines if line)


def summarise_day(
    ledger: Ledger, config: PaperConfig, session: Session, previous: Session, prices: Mapping[str, Decimal],
    differences: Sequence[str], next_decision: datetime,
) -> DaySummary:  # fmt: skip
    """Summarise a session that has closed. prices: after its close; the last known closes stand for missing ones."""
    store = ledger.store
    start = stamp(previous.close)
    closes = ledger.closes.before(session.date.isoformat())
    prices_now = {**ledger.closes.prices, **prices}
    flows, shares_bought, fills = _flows(ledger, start)
    profits: dict[str, Decimal] = {}
    for symbol in sorted({s for s, shares in ledger.positions.items() if shares} | set(flows)):
        shares = ledger.positions.get(symbol, ZERO)
        price = prices_now.get(symbol, ZERO)
        value_before = (shares - shares_bought.get(symbol, ZERO)) * closes.get(symbol, price)
        profits[symbol] = shares * price - value_before + flows.get(symbol, ZERO)
    capital = Decimal(str(config.capital))
    equity = capital + ledger.cash + market_value(ledger.positions, prices_now)
    rows = store.rows(schema.equity, schema.equity.c.at <= stamp(session.close))
    recorded_marks = [(row.at, Decimal(row.equity)) for row in rows]
    *marks, _ = adjusted_equity(store, config, [*recorded_marks, (NOW, equity)])
    peak = max([*marks, equity])
    last = marks[-1]
    strategies = {
        strategy.name: Decimal(str(allocation.capital)) + book.cash + market_value(book.positions, prices_now)
        for strategy, allocation in zip(config.strategies, allocations(config), strict=False)
        for book in (ledger.books[allocation.name],)
    }
    return DaySummary(
        session=session,
        equity=equity,
        day_return=float(equity / last - 1) if last else 0.0,
        drawdown=float(1 - equity / peak) if peak > 0 else 0.0,
        profits=profits,
        strategies=strategies,
        orders=_order_states(ledger, start),
        fills=fills,
        distance=account_distance(ledger, config, prices_now),
        differences=differences,
        next_decision=next_decision,
        has_prices=bool(prices),
    )


def _flows(ledger: Ledger, start: str) -> tuple[dict[str, Decimal], dict[str, Decimal], int]:
    """Cash from fills and dividends and shares bought by symbol since a time, and the number of fills."""
    rows = ledger.store.query(schema.fills_with_intents.where(schema.fills.c.time > start))
    cash: dict[str, Decimal] = defaultdict(Decimal)
    shares_bought: dict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        signed_quantity = Side(row.side).sign * Decimal(row.quantity)
        cash[row.symbol] -= signed_quantity * Decimal(row.price) + Decimal(row.fee)
        shares_bought[row.symbol] += signed_quantity
    actions = schema.corporate_actions.c
    for row in ledger.store.rows(schema.corporate_actions, actions.at > start, actions.kind != ActionKind.TRANSFER):
        cash[row.symbol] += Decimal(row.cash)
    return cash, shares_bought, len(rows)


def _order_states(ledger: Ledger, start: str) -> dict[str, int]:
    """Number of orders since a time by last known status at the broker, or by our state if it has none."""
    numbers = {row.id for row in ledger.store.rows(schema.orders, schema.orders.c.at > start)}
    last = {row.order_id: row for row in ledger.store.rows(schema.order_events, schema.order_events.c.at > start)}
    known_to_broker = (OrderState.ENDED, OrderState.WORKING)
    rows = (last[number] for number in numbers)
    return Counter((row.status if row.state in known_to_broker else row.state).replace("_", " ") for row in rows)
