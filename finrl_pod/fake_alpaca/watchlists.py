"""Watchlists of the account: named lists of symbols, found by id or by name."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.reference_api import asset
from finrl_pod.fake_alpaca.trading_api import account
from finrl_pod.fake_alpaca.wire_format import (
    ID_NAMESPACE,
    INVALID_PARAMETER,
    MALFORMED_BODY,
    NOT_FOUND,
    UNPROCESSABLE,
    ApiError,
    timestamp,
)

_LONGEST_NAME = 64


@dataclass
class Watchlist:
    """A named list of symbols. created, updated: UTC epoch seconds."""

    id: str
    name: str
    symbols: list[str]
    created: float
    updated: float


class Watchlists:
    """All watchlists of one account; they are not part of the state file."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._lists: dict[str, Watchlist] = {}
        self._made = 0

    def all(self, moment: float) -> list[dict[str, Any]]:
        """GET watchlists, without their assets."""
        return [{k: v for k, v in self._json(w, moment).items() if k != "assets"} for w in self._lists.values()]

    def create(self, body: Any, moment: float) -> dict[str, Any]:
        """POST watchlists."""
        name = self._name(body, None)
        symbols = self._symbols(body.get("symbols") or [])
        self._made += 1
        number = str(uuid.uuid5(ID_NAMESPACE, f"{self._exchange.settings.seed}/watchlist/{self._made}"))
        self._lists[number] = Watchlist(number, name, symbols, moment, moment)
        return self._json(self._lists[number], moment)

    def find(self, key: str, moment: float, *, by_name: bool = False) -> dict[str, Any]:
        """GET watchlists/{id} or watchlists:by_name."""
        return self._json(self._get(key, by_name=by_name), moment)

    def update(self, key: str, body: Any, moment: float, *, by_name: bool = False) -> dict[str, Any]:
        """PUT: replace name and symbols."""
        found = self._get(key, by_name=by_name)
        name = self._name(body, found)
        found.symbols = self._symbols(body["symbols"]) if body.get("symbols") is not None else found.symbols
        found.name = name
        found.updated = moment
        return self._json(found, moment)

    def add(self, key: str, body: Any, moment: float, *, by_name: bool = False) -> dict[str, Any]:
        """POST: add one symbol."""
        found = self._get(key, by_name=by_name)
        symbol = body.get("symbol") if isinstance(body, Mapping) else None
        (symbol,) = self._symbols([symbol])
        if symbol in found.symbols:
            raise ApiError(422, UNPROCESSABLE, "duplicate symbol")
        found.symbols = [*found.symbols, symbol]
        found.updated = moment
        return self._json(found, moment)

    def remove(self, key: str, symbol: str, moment: float) -> dict[str, Any]:
        """DELETE watchlists/{id}/{symbol}."""
        found = self._get(key)
        if symbol not in found.symbols:
            raise ApiError(404, NOT_FOUND, "symbol not found in watchlist")
        found.symbols = [s for s in found.symbols if s != symbol]
        found.updated = moment
        return self._json(found, moment)

    def delete(self, key: str, *, by_name: bool = False) -> None:
        """DELETE watchlists/{id} or watchlists:by_name."""
        del self._lists[self._get(key, by_name=by_name).id]

    # ------------------------------------------------------------------ helpers

    def _get(self, key: str, *, by_name: bool = False) -> Watchlist:
        found = next((w for w in self._lists.values() if key == (w.name if by_name else w.id)), None)
        if found is None:
            raise ApiError(404, NOT_FOUND, "watchlist not found")
        return found

    def _name(self, body: Any, current: Watchlist | None) -> str:
        if not isinstance(body, Mapping):
            raise ApiError(400, MALFORMED_BODY, "request body format is invalid")
        name = body.get("name") or (current.name if current else None)
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise ApiError(422, INVALID_PARAMETER, f"watchlist name must have 1 to {_LONGEST_NAME} characters")
        if any(w.name == name and w is not current for w in self._lists.values()):
            raise ApiError(422, UNPROCESSABLE, "watchlist name must be unique")
        return name

    def _symbols(self, symbols: Any) -> list[str]:
        if not isinstance(symbols, list):
            raise ApiError(422, INVALID_PARAMETER, "symbols must be a list")
        for symbol in symbols:
            if not isinstance(symbol, str) or not self._exchange.prices.has_symbol(symbol):
                raise ApiError(422, UNPROCESSABLE, f'asset "{str(symbol)[:40]}" not found')
        return list(dict.fromkeys(symbols))

    def _json(self, found: Watchlist, moment: float) -> dict[str, Any]:
        return {
            "id": found.id,
            "account_id": account(self._exchange, moment)["id"],
            "created_at": timestamp(found.created),
            "updated_at": timestamp(found.updated),
            "name": found.name,
            "assets": [asset(self._exchange, symbol, moment) for symbol in found.symbols],
        }
