"""Corporate actions: booked once, on own and on foreign shares alike, from the day on which prices are without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_DOWN, Decimal

from finrl_pod.paper.brokers.port import Broker
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.book import Book
from finrl_pod.paper.records import ActionKind, CorporateAction

ZERO = Decimal(0)
SHARE_STEP = Decimal("1e-9")
LOOK_BACK = timedelta(days=10)  # an action may be announced late


def book_actions(
    broker: Broker, book: Book, symbols: Sequence[str], today: date, since: date, at: datetime,
    alert: Callable[[str, str, str], None], *, pays_dividends: bool,
) -> tuple[CorporateAction, ...]:  # fmt: skip
    """Ask for the actions of `symbols` up to `today` and book those that are new. Returns all that were answered.

    since: actions before the journal began are none of ours. pays_dividends: whether the account is credited in cash
    (Alpaca's paper accounts are not: then a dividend is written down with no cash).
    """
    answered = broker.corporate_actions(symbols, today - LOOK_BACK, today)
    known = {row.action_id for row in book.store.rows(schema.corporate_actions)}
    for action in sorted(answered, key=lambda a: (a.ex_date, a.id)):
        if action.id in known or action.ex_date <= since:
            continue
        own, foreign = book.positions.get(action.symbol, ZERO), book.foreign().get(action.symbol, ZERO)
        if action.kind is ActionKind.OTHER:
            if own:
                alert("critical", "corporate_action", f"{action.symbol}: {action.detail or 'an action'} is not booked")
            continue
        own_change = foreign_change = cash = ZERO
        if action.kind is ActionKind.CASH_DIVIDEND:
            cash = own * action.cash if pays_dividends else ZERO
        else:
            own_change = (own * action.ratio).quantize(SHARE_STEP, ROUND_DOWN) - own
            foreign_change = (foreign * action.ratio).quantize(SHARE_STEP, ROUND_DOWN) - foreign
        book.book_action(action, own_change, foreign_change, cash, at)
        if own:
            words = f"{own_change:+} shares" if own_change else f"{cash} in cash"
            alert("info", "corporate_action", f"{action.symbol}: {action.kind.value} of {action.ex_date}, {words}")
    return answered
