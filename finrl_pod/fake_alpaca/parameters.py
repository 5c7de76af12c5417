"""The parameters of a request to the trading API: None where one is missing, Refusal for what cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation

from finrl_pod.fake_alpaca.orders import Refusal
from finrl_pod.fake_alpaca.rules import PARAMETER


def count(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    """A number of entries, within its range."""
    value = query.get(name) or str(default)
    if not value.isdecimal() or not 1 <= int(value) <= most:
        raise Refusal(422, PARAMETER, f"invalid {name}: must be 1 to {most}")
    return int(value)


def day(query: Mapping[str, str], name: str) -> date | None:
    """A date, or the date of a time."""
    value = query.get(name)
    if not value:
        return None
    try:
        return datetime.fromisoformat(value).date()
    except ValueError:
        raise Refusal(422, PARAMETER, f"invalid {name}: {value}") from None


def moment(query: Mapping[str, str], name: str) -> int | None:
    """Microseconds since the epoch; a bare date is its midnight in UTC, as is a time without a zone."""
    value = query.get(name)
    if not value:
        return None
    try:
        when = datetime.fromisoformat(value.replace(" ", "+"))
    except ValueError:
        raise Refusal(422, PARAMETER, f"invalid {name}: {value}") from None
    return micros((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def micros(seconds: float) -> int:
    """The stamps in the answers have microseconds: at a finer resolution `after` would find its own entry again."""
    return round(seconds * 1e6)


def amount(query: Mapping[str, str], name: str) -> Decimal | None:
    """A number of shares, or a percentage."""
    try:
        return Decimal(query[name]) if query.get(name) else None
    except InvalidOperation:
        raise Refusal(422, PARAMETER, f"invalid {name}: {query[name]}") from None
