"""Formats of the Alpaca API: errors, numbers, timestamps, ids and query parameters."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import ROUND_DOWN, Decimal, InvalidOperation
from functools import cache
from typing import Any

# Codes in the bodies of error responses of Alpaca.
MALFORMED_BODY = 40010000
INVALID_PARAMETER = 40010001
FORBIDDEN = 40310000
PATTERN_DAY_TRADING = 40310100
NOT_FOUND = 40410000
UNPROCESSABLE = 42210000

# Namespace of all generated ids: one seed gives the same ids in every run.
ID_NAMESPACE = uuid.UUID("6f3c1f0e-6f0a-4d0c-9a53-0f7d0c0ffee0")
NANO = Decimal("1e-9")  # precision of shares and prices
_MAX_NUMBER = Decimal(10) ** 12  # of a quantity, price or percentage in a request
_MAX_DIGITS = 40  # characters of such a number
_MAX_COUNT_DIGITS = 9  # characters of a limit or page
_EARLIEST = -2_208_988_800.0  # 1900 and 2200 as epoch seconds; times beyond are clamped
_LATEST = 7_258_118_400.0
_PAGE_PREFIX = "page-"


class ApiError(Exception):
    """An error response: HTTP status, Alpaca error code (or None), message, and further fields of the body."""

    def __init__(self, status: int, code: int | None, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {**({} if code is None else {"code": code}), "message": message, **fields}


def invalid_parameter(message: str) -> ApiError:
    """Error for a parameter that is missing, malformed or not allowed."""
    return ApiError(422, INVALID_PARAMETER, message)


def unprocessable(message: str, **fields: Any) -> ApiError:
    """Error for an order that the exchange does not take."""
    return ApiError(422, UNPROCESSABLE, message, **fields)


def forbidden_order(message: str, **fields: Any) -> ApiError:
    """Error for an order that the account may not send."""
    return ApiError(403, FORBIDDEN, message, **fields)


def decimal_text(value: Decimal | None) -> str | None:
    """Format a number for the API: plain digits, without an exponent or trailing zeros. None stays None."""
    if value is None:
        return None
    plain = format(value.normalize(), "f")
    return "0" if plain in ("-0", "0") else plain


def timestamp(moment: float) -> str:
    """UTC epoch seconds as RFC 3339 in UTC with microseconds."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@cache
def asset_id(symbol: str) -> str:
    """Id of the asset of a symbol, a function of the symbol only."""
    return str(uuid.uuid5(ID_NAMESPACE, f"asset/{symbol}"))


def parse_number(value: object) -> Decimal:
    """A finite number of a request, as JSON number or text. Raises ValueError for anything else, or a larger one."""
    text = str(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(text) > _MAX_DIGITS:
        raise ValueError
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError from None
    if not number.is_finite() or abs(number) > _MAX_NUMBER:
        raise ValueError
    return number


def floor_shares(quantity: Decimal) -> Decimal:
    """Quantity rounded down to the nine decimals of a fractional share."""
    return quantity.quantize(NANO, rounding=ROUND_DOWN)


def price_decimal(price: float) -> Decimal:
    """A price of the panel as a Decimal with at most nine decimals."""
    return Decimal(repr(price)).quantize(NANO).normalize()


def microseconds(seconds: float) -> int:
    """Epoch seconds as whole microseconds, the resolution of timestamps in responses.

    Filters compare at this resolution: at a finer one, `after` an entry's own timestamp would return that entry again.
    """
    return round(seconds * 1e6)


class QueryParameters:
    """Typed access to a request's query. A parameter that cannot be read raises ApiError with this status and code."""

    def __init__(self, values: Mapping[str, str], status: int = 422, code: int | None = INVALID_PARAMETER) -> None:
        self._values = values
        self._status = status
        self._code = code

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of the allowed values; the first one if missing."""
        value = self._values.get(name) or choices[0]
        if value not in choices:
            raise self._error(f"invalid {name}: {value}")
        return value

    def integer(self, name: str, default: int, maximum: int) -> int:
        """A number of entries between 1 and `maximum`."""
        value = self._values.get(name) or str(default)
        if not _is_count(value) or not 1 <= int(value) <= maximum:
            raise self._error(f"invalid {name}: must be 1 to {maximum}")
        return int(value)

    def decimal(self, name: str) -> Decimal | None:
        """A decimal number; None if missing."""
        try:
            return parse_number(self._values[name]) if self._values.get(name) else None
        except ValueError:
            raise self._invalid(name) from None

    def day(self, name: str, *, allow_time: bool = True) -> date | None:
        """A date, or the date part of a time where that is allowed; None if missing."""
        value = self._values.get(name)
        if not value:
            return None
        try:
            return datetime.fromisoformat(value).date() if allow_time else date.fromisoformat(value)
        except ValueError:
            raise self._invalid(name) from None

    def epoch_seconds(self, name: str) -> float | None:
        """A time as UTC epoch seconds; None if missing. A time without a zone, or a bare date, is taken as UTC."""
        value = self._values.get(name)
        if not value:
            return None
        try:
            moment = datetime.fromisoformat(value.replace(" ", "+"))
        except ValueError:
            raise self._invalid(name) from None
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return min(max(seconds, _EARLIEST), _LATEST)

    def epoch_microseconds(self, name: str) -> int | None:
        """A time as UTC epoch microseconds, read like `epoch_seconds`."""
        seconds = self.epoch_seconds(name)
        return None if seconds is None else microseconds(seconds)

    def page_start(self) -> int:
        """Index of the first entry of the page that `page_token` names; 0 without a token."""
        token = self._values.get("page_token") or f"{_PAGE_PREFIX}0"
        start = token.removeprefix(_PAGE_PREFIX)
        if not token.startswith(_PAGE_PREFIX) or not _is_count(start):
            raise self._error("invalid page_token")
        return int(start)

    def _invalid(self, name: str) -> ApiError:
        return self._error(f"invalid {name}: {self._values[name][:_MAX_DIGITS]}")

    def _error(self, message: str) -> ApiError:
        return ApiError(self._status, self._code, message)


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_COUNT_DIGITS


def next_page_token(start: int, limit: int, total: int) -> str | None:
    """Token of the page that follows the one of `limit` entries from `start`; None after the last page."""
    return f"{_PAGE_PREFIX}{start + limit}" if start + limit < total else None
