"""Why Alpaca said no: HTTP status, code and message as one of the reasons that the daemon tells apart."""

from __future__ import annotations

from datetime import datetime, timedelta

from finrl_pod.paper.brokers.alpaca.transport import Answered
from finrl_pod.paper.records import Ambiguous, Outcome, Reason, Rejected

_AMBIGUOUS_4XX = (408, 409, 425)  # too late, in conflict, too early: it may have been taken all the same
_DETAILS = ("buying_power", "cost_basis", "available", "existing_qty", "held_for_orders", "reject_reason")
_BLOCKED = ("rejected by user request", "account is not authorized", "account is restricted", "trading is blocked")


def keys_refused(answer: Answered) -> bool:
    """401, or a 403 without a code: not this request was refused, but whoever sends it.

    A feed that the account has not subscribed to is a 403 without a code, too, and says so.
    """
    forbidden = answer.status == 403 and "code" not in answer.body and "subscription" not in answer.message
    return answer.status == 401 or forbidden


def outcome(answer: Answered, now: datetime, *, of_order: bool = False) -> Outcome:
    """What became of a write. of_order: it was about an order that exists (a cancel, a replacement)."""
    status, message = answer.status, answer.message
    if status >= 500 or status in _AMBIGUOUS_4XX:
        return Ambiguous(f"the broker answered {status}: {message}")
    if status == 429:
        return Rejected(Reason.RATE_LIMITED, message, retry_at=now + timedelta(seconds=answer.wait))
    blocking = answer.body.get("existing_order_id")
    return Rejected(
        _reason(answer, of_order=of_order),
        message,
        blocking_order_id=blocking if isinstance(blocking, str) else None,
        details={name: str(answer.body[name]) for name in _DETAILS if name in answer.body},
    )


def _reason(answer: Answered, *, of_order: bool) -> Reason:
    """Sources disagree about codes: status and message decide."""
    status, text = answer.status, answer.message.lower()
    if status == 404:
        return Reason.NOT_FOUND
    if "client_order_id must be unique" in text:
        return Reason.DUPLICATE_ID
    if "wash trade" in text:
        return Reason.WASH_TRADE
    if "insufficient qty" in text:
        held = str(answer.body.get("held_for_orders", "0"))
        return Reason.INSUFFICIENT_QUANTITY if held.strip("0.") == "" else Reason.HELD_FOR_ORDERS
    if "buying power" in text:
        return Reason.BUYING_POWER
    if any(words in text for words in _BLOCKED):
        return Reason.BLOCKED
    if "not tradable" in text or "not active" in text:
        return Reason.NOT_TRADABLE
    if of_order and status == 422 and ("state" in text or "cancelable" in text or "replaceable" in text):
        return Reason.NOT_CANCELABLE
    return Reason.INVALID if status in (400, 422) else Reason.OTHER
