"""The market data API's answers as plain values: bars in pages, the latest of everything, corporate actions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from finrl_pod.fake_alpaca.orders import NAMESPACE, Refusal
from finrl_pod.fake_alpaca.prices import Prices
from finrl_pod.fake_alpaca.sessions import Session, new_york, stamp

_MOST = 10_000
_DEFAULT = 1_000
_ADJUSTMENTS = ("raw", "split", "dividend", "all")
_FEEDS = ("sip", "iex", "delayed_sip", "otc", "boats", "overnight")
_HALF_SPREAD = 0.00005  # of the price
_LETTERS = {"open": "o", "high": "h", "low": "l", "close": "c", "volume": "v"}
_RECENT_SIP = timedelta(minutes=15).total_seconds()


@dataclass
class Flaws:
    """What tests do to the bars: none after `stale_after` (a date), and single fields changed.

    edits: (symbol, "YYYY-MM-DD" or "" for every day) -> {letter: value}; a value of None takes the field away, and an
    empty mapping the whole bar.
    """

    stale_after: str = ""
    edits: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)


class MarketData:
    """Daily bars, up to the one of the session at hand."""

    def __init__(self, prices: Prices, *, sip: bool) -> None:
        self.prices = prices
        self.flaws = Flaws()
        self._sip = sip

    def bars(self, query: Mapping[str, str], moment: float, symbols: list[str] | None = None) -> dict[str, Any]:
        """GET stocks/bars: sorted by symbol and then time, so that the first page may hold one symbol alone."""
        wanted = self._symbols(query) if symbols is None else symbols
        if query.get("timeframe") not in ("1Day", "1D"):
            raise Refusal(
                400, None, f"invalid timeframe: {query.get('timeframe')!r}; this stand-in has daily bars (1Day)"
            )
        adjustment = query.get("adjustment") or "raw"
        if adjustment not in _ADJUSTMENTS:
            raise Refusal(400, None, f"invalid adjustment: {adjustment}")
        limit = _count(query, _DEFAULT)
        start, end = self._range(query, moment)
        self._check_feed(query, end, moment)
        every = self._places(sorted(wanted), start, end, moment, newest_first=query.get("sort") == "desc")
        first, known = _token(query), self._known(moment)
        page: dict[str, list[dict[str, Any]]] = {}
        for symbol, session in every[first : first + limit]:
            bar = self._bar(symbol, session, adjustment, moment, known)
            if bar is not None:
                page.setdefault(symbol, []).append(bar)
        more = f"page-{first + limit}" if first + limit < len(every) else None
        return {"bars": page, "next_page_token": more}

    def latest(
        self, what: str, query: Mapping[str, str], moment: float, symbols: list[str] | None = None
    ) -> dict[str, Any]:
        """GET stocks/{trades|quotes|bars}/latest, and snapshots: {symbol: record}, without symbols that have none."""
        self._check_feed(query, moment - _RECENT_SIP - 1, moment)
        build = {"trades": self._trade, "quotes": self._quote, "bars": self._last_bar, "snapshots": self._snapshot}[
            what
        ]
        found = {s: build(s, moment) for s in (self._symbols(query) if symbols is None else symbols)}
        return {s: record for s, record in found.items() if record is not None}

    def corporate_actions(self, query: Mapping[str, str], moment: float) -> dict[str, Any]:
        """GET /v1/corporate-actions: those with an ex-date in start..end, announced or past."""
        symbols = {s for s in (query.get("symbols") or "").split(",") if s}
        kinds = {k for k in (query.get("types") or "").split(",") if k}
        today = new_york(moment).date()
        start, end = _date(query, "start") or today, _date(query, "end") or today
        limit = _count(query, 100, 1_000)
        found = []
        for action in sorted(self.prices.actions, key=lambda a: a.ex_date):
            kind = "cash_dividend" if action.kind == "dividend" else "forward" if action.new > action.old else "reverse"
            kind = f"{kind}_split" if kind in ("forward", "reverse") else kind
            if not start <= date.fromisoformat(action.ex_date) <= end or (symbols and action.symbol not in symbols):
                continue
            if kinds and kind not in kinds:
                continue
            name = {"id": str(uuid.uuid5(NAMESPACE, f"action/{action}")), "symbol": action.symbol}
            day = {"ex_date": action.ex_date, "process_date": action.ex_date, "payable_date": action.ex_date}
            if kind == "cash_dividend":
                detail = {"cusip": "", "rate": action.cash, "special": False, "foreign": False}
            else:
                detail = {"new_rate": action.new, "old_rate": action.old}
                detail |= {"cusip": ""} if kind == "forward_split" else {"old_cusip": "", "new_cusip": ""}
            found.append((f"{kind}s", {**name, **day, **detail}))
        first = _token(query)
        page: dict[str, list[dict[str, Any]]] = {}
        for group, action_ in found[first : first + limit]:
            page.setdefault(group, []).append(action_)
        more = f"page-{first + limit}" if first + limit < len(found) else None
        return {"corporate_actions": page, "next_page_token": more}

    def check_symbol(self, symbol: str) -> list[str]:
        """For paths that name one symbol."""
        if not self.prices.knows(symbol):
            raise Refusal(400, None, f"invalid symbol: {symbol}")
        return [symbol]

    def _symbols(self, query: Mapping[str, str]) -> list[str]:
        names = [s for s in (query.get("symbols") or "").split(",") if s]
        if not names:
            raise Refusal(400, None, "symbols is required")
        # Alpaca leaves out symbols that it does not know.
        return [s for s in dict.fromkeys(names) if self.prices.knows(s)]

    def _range(self, query: Mapping[str, str], moment: float) -> tuple[float, float]:
        """(start, end) in epoch seconds; without a start, the beginning of the day; never beyond the present."""
        midnight = datetime.combine(datetime.fromtimestamp(moment, UTC).date(), datetime.min.time(), UTC).timestamp()
        start, end = _moment(query, "start"), _moment(query, "end")
        return (midnight if start is None else start), min(moment if end is None else end, moment)

    def _check_feed(self, query: Mapping[str, str], end: float, moment: float) -> None:
        feed = query.get("feed") or ("sip" if self._sip else "iex")
        if feed not in _FEEDS:
            raise Refusal(400, None, f"invalid feed: {feed}")
        if feed == "sip" and not self._sip and end > moment - _RECENT_SIP:
            raise Refusal(403, None, "subscription does not permit querying recent SIP data")

    def _places(
        self, symbols: list[str], start: float, end: float, moment: float, *, newest_first: bool
    ) -> list[tuple[str, Session]]:
        """Which bars there are, symbol by symbol: start <= midnight in New York <= end, today's from the opening on."""
        opened = self.prices.sessions.opened(moment)
        if opened is None:
            return []
        last = min(new_york(end).date(), opened.date)
        days = self.prices.sessions.between(new_york(start).date(), last)
        rows = [(self.prices.row_of(day.date), day) for day in days if start <= day.midnight <= end]
        stale = self.flaws.stale_after
        there = [(row, day) for row, day in rows if row is not None and (not stale or day.date.isoformat() <= stale)]
        if newest_first:
            there.reverse()
        lost = {place for place, edit in self.flaws.edits.items() if not edit}
        found = []
        for symbol in symbols:
            if (symbol, "") in lost:
                continue
            trades = self.prices.tradable_rows(symbol, [row for row, _ in there])
            found += [(symbol, day) for (_, day), good in zip(there, trades, strict=True) if good]
        return [(s, day) for s, day in found if (s, day.date.isoformat()) not in lost] if lost else found

    def _bar(self, symbol: str, session: Session, adjustment: str, moment: float, known: int) -> dict[str, Any] | None:
        row = self.prices.row_of(session.date)
        day = session.date.isoformat()
        if row is None or (self.flaws.stale_after and day > self.flaws.stale_after):
            return None
        values = self.prices.bar(symbol, row, adjustment, known)
        if values is None:
            return None
        if session.open <= moment < session.close:
            values = self._so_far(symbol, session, values, moment)
        bar: dict[str, Any] = {"t": stamp(session.midnight)[:19] + "Z"}
        bar |= {letter: values[name] for name, letter in _LETTERS.items()}
        bar |= {"v": int(values["volume"]), "n": 0, "vw": values["close"]}
        for place in ((symbol, ""), (symbol, day)):
            edit = self.flaws.edits.get(place)
            if edit is not None and not edit:
                return None
            for letter, value in (edit or {}).items():
                if value is None:
                    bar.pop(letter, None)
                else:
                    bar[letter] = value
        return bar

    def _so_far(self, symbol: str, session: Session, values: dict[str, float], moment: float) -> dict[str, float]:
        """A session's bar before its close: what the path has shown by now (today's prices are raw prices)."""
        path = self.prices.path(symbol, session) or []
        price = self.prices.at(symbol, moment) or values["close"]
        seen = [p for t, p in path if t <= moment] + [price]
        share = (moment - session.open) / (session.close - session.open)
        return {
            "open": seen[0],
            "high": max(seen),
            "low": min(seen),
            "close": price,
            "volume": values["volume"] * share,
        }

    def _known(self, moment: float) -> int:
        """The row by which corporate actions count as having happened: those of today do once the day has begun."""
        return self.prices.known_row(new_york(moment).date())

    def _last_session(self, symbol: str, moment: float) -> Session | None:
        opened = self.prices.sessions.opened(moment)
        row = None if opened is None else self.prices.last_row(symbol, opened.date)
        return None if row is None else self.prices.sessions.on(self.prices.dates[row])

    def _trade(self, symbol: str, moment: float) -> dict[str, Any] | None:
        session, price = self._last_session(symbol, moment), self.prices.at(symbol, moment)
        if session is None or price is None:
            return None
        stale = self.flaws.stale_after
        at = min(moment, session.close)
        if stale and session.date.isoformat() > stale:
            return None
        return {"t": stamp(at), "x": "V", "p": price, "s": 100, "c": ["@"], "i": int(at), "z": "C"}

    def _quote(self, symbol: str, moment: float) -> dict[str, Any] | None:
        trade = self._trade(symbol, moment)
        if trade is None:
            return None
        bid, ask = trade["p"] * (1 - _HALF_SPREAD), trade["p"] * (1 + _HALF_SPREAD)
        sides = {"bp": round(bid, 4), "bs": 1, "bx": "V", "ap": round(ask, 4), "as": 1, "ax": "V"}
        return {"t": trade["t"], **sides, "c": ["R"], "z": "C"}

    def _last_bar(self, symbol: str, moment: float) -> dict[str, Any] | None:
        session = self._last_session(symbol, moment)
        return None if session is None else self._bar(symbol, session, "raw", moment, self._known(moment))

    def _snapshot(self, symbol: str, moment: float) -> dict[str, Any] | None:
        session = self._last_session(symbol, moment)
        if session is None:
            return None
        before = self._last_session(symbol, session.open - 1)
        today = self._bar(symbol, session, "raw", moment, self._known(moment))
        parts = {
            "latestTrade": self._trade(symbol, moment),
            "latestQuote": self._quote(symbol, moment),
            "minuteBar": today,
            "dailyBar": today,
            "prevDailyBar": None if before is None else self._bar(symbol, before, "raw", moment, self._known(moment)),
        }
        return {name: part for name, part in parts.items() if part is not None}


def _count(query: Mapping[str, str], default: int, most: int = _MOST) -> int:
    value = query.get("limit") or str(default)
    if not value.isdecimal() or not 1 <= int(value) <= most:
        raise Refusal(400, None, f"invalid limit: must be 1 to {most}")
    return int(value)


def _token(query: Mapping[str, str]) -> int:
    token = query.get("page_token") or "page-0"
    if not token.startswith("page-") or not token[5:].isdecimal():
        raise Refusal(400, None, "invalid page_token")
    return int(token[5:])


def _moment(query: Mapping[str, str], name: str) -> float | None:
    value = query.get(name)
    if not value:
        return None
    try:
        moment = datetime.fromisoformat(value.replace(" ", "+"))
    except ValueError:
        raise Refusal(400, None, f"invalid {name}: {value}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _date(query: Mapping[str, str], name: str) -> date | None:
    value = query.get(name)
    try:
        return date.fromisoformat(value) if value else None
    except ValueError:
        raise Refusal(400, None, f"invalid {name}: {value}") from None
