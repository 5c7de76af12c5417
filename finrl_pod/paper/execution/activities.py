"""Books what the broker changed without a trade: paid dividends, mergers, spin-offs, deposits and withdrawals.

Shares and cash are split between the own and the external part of the account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import ROUND_DOWN, Decimal

from finrl_pod.paper.domain.records import AccountActivity, ActionKind
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.ledger import Booking, Ledger
from finrl_pod.paper.settings import PaperConfig, allocations

ZERO = Decimal(0)
SHARE_STEP = Decimal("1e-9")
ROUNDING = Decimal("0.05")  # currency, of a dividend that is paid


def activity_groups(activities: Iterable[AccountActivity]) -> list[list[AccountActivity]]:
    """Return the activities that belong together, in the order of their first ones."""
    groups: dict[str, list[AccountActivity]] = {}
    for activity in activities:
        groups.setdefault(activity.group, []).append(activity)
    return list(groups.values())


def book_activities(
    ledger: Ledger, config: PaperConfig, group: Sequence[AccountActivity], account_cash: Decimal, now: datetime
) -> list[Booking]:  # fmt: skip
    """Write activities that belong together. account_cash: cash of the account before them. Returns their bookings."""
    own, weights = _holders(ledger, [activity.symbol for activity in group])
    removed = next((activity for activity in group if activity.quantity < 0), None)
    if removed is not None:
        own = min(max(ledger.positions.get(removed.symbol, ZERO) / -removed.quantity, ZERO), Decimal(1))
        weights = ledger.shares_by_run(removed.symbol)
    bookings = []
    for activity in group:
        account_cash += activity.cash
        if activity.kind is ActionKind.TRANSFER:
            runs = {allocation.name: Decimal(str(allocation.capital)) for allocation in allocations(config)}
            own_cash = _own_transfer(ledger, Decimal(str(config.capital)), activity.cash, account_cash)
            booking = _booking(activity, own_cash, runs)
        elif activity.kind is ActionKind.CASH_DIVIDEND:
            booking = _dividend(ledger, activity)
        else:
            change = activity.quantity if own == 1 else (activity.quantity * own).quantize(SHARE_STEP, ROUND_DOWN)
            booking = _booking(activity, activity.cash * own, weights, own_change=change)
        ledger.book(booking, now)
        bookings.append(booking)
    return bookings


def _own_transfer(ledger: Ledger, capital: Decimal, amount: Decimal, account_cash: Decimal) -> Decimal:
    """Part of a deposit or withdrawal that changes the cash of the run. account_cash: cash of the account after it.

    A withdrawal takes the cash that the run does not use first; a deposit first gives back what the run lost.
    """
    if amount < 0:
        return -min(-amount, max(capital + ledger.cash - account_cash, ZERO))
    is_transfer = schema.corporate_actions.c.kind == ActionKind.TRANSFER
    own_transfers = [Decimal(row.cash) for row in ledger.store.rows(schema.corporate_actions, is_transfer)]
    return min(amount, max(-sum(own_transfers, ZERO), ZERO))


def _dividend(ledger: Ledger, activity: AccountActivity) -> Booking:
    """The own part is the dividend that was recorded as unpaid, else (a tax) in proportion to the shares held now."""
    weights = ledger.unpaid_dividends().get(activity.symbol, {})
    unpaid = min(sum(weights.values(), ZERO), max(activity.cash, ZERO))
    if unpaid <= 0:
        own, shares = _holders(ledger, [activity.symbol])
        return _booking(activity, activity.cash * own, shares)
    own_cash = activity.cash if abs(activity.cash - unpaid) <= ROUNDING else unpaid
    return _booking(activity, own_cash, weights, unpaid=-unpaid)


def _booking(
    activity: AccountActivity, own_cash: Decimal, weights: Mapping[str, Decimal], own_change: Decimal = ZERO,
    unpaid: Decimal = ZERO,
) -> Booking:  # fmt: skip
    return Booking(
        activity.id, activity.kind, activity.symbol, activity.created.date(), own_change,
        activity.quantity - own_change, own_cash, activity.cash - own_cash, unpaid, weights=weights,
    )  # fmt: skip


def _holders(ledger: Ledger, symbols: Sequence[str]) -> tuple[Decimal, dict[str, Decimal]]:
    """Own part (0 to 1) of the shares of some symbols, and own shares by run.

    If nobody holds these, as after a spin-off, activities of all symbols; then no part is own if any share is external.
    """
    external_positions = ledger.external_positions()
    held_symbols = {*external_positions, *(symbol for symbol, shares in ledger.positions.items() if shares)}
    selected_symbols = held_symbols & set(symbols) or held_symbols
    weights: dict[str, Decimal] = {}
    for symbol in sorted(selected_symbols):
        for run, shares in ledger.shares_by_run(symbol).items():
            weights[run] = weights.get(run, ZERO) + shares
    own = sum((ledger.positions.get(symbol, ZERO) for symbol in selected_symbols), ZERO)
    external = sum((external_positions.get(symbol, ZERO) for symbol in selected_symbols), ZERO)
    if (external and len(selected_symbols) > 1) or own + external <= 0:
        return ZERO, weights
    return own / (own + external), weights
