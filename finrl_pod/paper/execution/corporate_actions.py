"""Records corporate actions once, on own and on external shares, from their ex-date on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_DOWN, Decimal

from finrl_pod.paper.domain.port import Broker
from finrl_pod.paper.domain.records import ActionKind, CorporateAction
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.ledger import Ledger

ZERO = Decimal(0)
SHARE_STEP = Decimal("1e-9")
LOOKBACK = timedelta(days=10)  # an action may be announced late


def record_corporate_actions(
    broker: Broker, ledger: Ledger, symbols: Sequence[str], today: date, start: date, now: datetime,
    alert: Callable[[str, str, str], None], *, pays_dividends: bool,
) -> tuple[CorporateAction, ...]:  # fmt: skip
    """Query the actions of `symbols` up to `today` and record new ones. Returns all actions of the query.

    start: date of the journal start; earlier actions are ignored. pays_dividends: whether the account is credited
    with dividends. Alpaca paper accounts are not; a dividend is then recorded with no cash.
    """
    actions = broker.corporate_actions(symbols, today - LOOKBACK, today)
    known_ids = {row.action_id for row in ledger.store.rows(schema.corporate_actions)}
    for action in sorted(actions, key=lambda a: (a.ex_date, a.id)):
        if action.id in known_ids or action.ex_date <= start:
            continue
        own_shares = ledger.positions.get(action.symbol, ZERO)
        if action.kind is ActionKind.OTHER:
            if own_shares:
                message = f"{action.symbol}: {action.detail or 'a corporate action'} is not supported and not recorded"
                alert("critical", "corporate_action", message)
            continue
        own_change, cash = book_action(ledger, action, now, pays_dividends=pays_dividends)
        if own_shares:
            effect = f"{own_change:+} shares" if own_change else f"{cash} in cash"
            alert("info", "corporate_action", f"{action.symbol}: {action.kind.value} of {action.ex_date}, {effect}")
    return actions


def book_action(
    ledger: Ledger, action: CorporateAction, now: datetime, *, pays_dividends: bool
) -> tuple[Decimal, Decimal]:
    """Record a split or dividend on the shares that are held now. Returns the change of own shares, and own cash."""
    own_shares = ledger.positions.get(action.symbol, ZERO)
    external_shares = ledger.external_positions().get(action.symbol, ZERO)
    own_change = external_change = cash = ZERO
    if action.kind is ActionKind.CASH_DIVIDEND:
        cash = own_shares * action.cash if pays_dividends else ZERO
    else:
        own_change = (own_shares * action.ratio).quantize(SHARE_STEP, ROUND_DOWN) - own_shares
        external_change = (external_shares * action.ratio).quantize(SHARE_STEP, ROUND_DOWN) - external_shares
    ledger.record_corporate_action(action, own_change, external_change, cash, now)
    return own_change, cash
