"""Market data API: daily and minute bars in pages, latest trades and quotes, corporate actions."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import numpy as np

from finrl_pod.fake_alpaca.prices import Prices, Session, new_york
from finrl_pod.fake_alpaca.settings import CorporateAction
from finrl_pod.fake_alpaca.wire_format import ID_NAMESPACE, ApiError, QueryParameters, next_page_token, timestamp

_DEFAULT_BARS_PER_PAGE = 1_000
_MAX_BARS_PER_PAGE = 10_000
_DEFAULT_ACTIONS_PER_PAGE = 100
_MAX_ACTIONS_PER_PAGE = 1_000
_ADJUSTMENTS = ("raw", "split", "dividend", "all")
_FEEDS = ("sip", "iex", "delayed_sip", "otc", "boats", "overnight")
_HALF_SPREAD = 0.00005  # of the price
_DAY = 86_400.0
_ERROR = (400, None)  # status and code of an unreadable parameter
_BAR_KEYS = {"open": "o", "high": "h", "low": "l", "close": "c", "volume": "v"}
_TIMEFRAME = re.compile(r"(\d{1,2})(Min|T)$")
_KINDS = {  # (kind, whether there are more shares afterwards) -> kind in the API
    ("dividend", False): "cash_dividend",
    ("split", True): "forward_split",
    ("split", False): "reverse_split",
}
_LENGTHS = (1, 2, 3, 5, 6, 10, 15, 30)  # divide half an hour, so that bars start on the clock and at the open
_RECENT_SIP_SECONDS = timedelta(minutes=15).total_seconds()


@dataclass
class BarFlaws:
    """Defects that tests put into bars: no bars after the date `stale_after`, and changed or missing fields.

    edits: (symbol, "YYYY-MM-DD" or "" for every day) -> {key: value}. A value of None removes the key, an empty
    mapping the whole bar.
    """

    stale_after: str = ""
    edits: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)


class MarketData:
    """Daily and minute bars of a panel up to the current session. sip: the account may read the consolidated feed."""

    def __init__(self, prices: Prices, *, sip: bool) -> None:
        self.prices = prices
        self.flaws = BarFlaws()
        self._sip = sip

    def bars(self, query: Mapping[str, str], moment: float) -> dict[str, Any]:
        """GET stocks/bars: sorted by symbol, then time, so that the first page may hold a single symbol."""
        parameters = QueryParameters(query, *_ERROR)
        requested_symbols = self._symbols(query)
        timeframe = query.get("timeframe") or ""
        if self.prices.sessions.continuous and timeframe in ("1Hour", "1H"):
            minutes = 60  # hours start on the clock around the clock only
        else:
            minutes = 0 if timeframe in ("1Day", "1D") else minutes_of(timeframe)
        adjustment = query.get("adjustment") or "raw"
        if adjustment not in _ADJUSTMENTS:
            raise ApiError(400, None, f"invalid adjustment: {adjustment}")
        limit = parameters.integer("limit", _DEFAULT_BARS_PER_PAGE, _MAX_BARS_PER_PAGE)
        end = parameters.epoch_seconds("end")
        end = moment if end is None else min(end, moment)
        start = parameters.epoch_seconds("start")
        if start is None:
            start = moment - moment % _DAY  # midnight in UTC
        self._check_feed(query, end, moment)
        first = parameters.page_start()
        as_of = self.prices.last_row_by(new_york(moment).date())  # today's actions count from the start of the day
        if minutes:
            one_day = timedelta(days=1)  # a UTC day may begin on the date before in New York
            days = self.prices.sessions.between(new_york(start).date() - one_day, new_york(end).date() + one_day)
            length = 60.0 * minutes
            starts = [  # of the bars that are complete
                bar_start
                for day in days
                for bar_start in (day.open + length * k for k in range(int((day.close - day.open) // length)))
                if start <= bar_start <= end and bar_start + length <= moment
            ]
            if query.get("sort") == "desc":
                starts.reverse()
            return self._minute_page(sorted(requested_symbols), starts, minutes, (first, limit), adjustment, as_of)
        available = self._available_bars(
            sorted(requested_symbols), start, end, moment, newest_first=query.get("sort") == "desc"
        )
        page: dict[str, list[dict[str, Any]]] = {}
        for symbol, session in available[first : first + limit]:
            page.setdefault(symbol, []).append(self._bar(symbol, session, adjustment, moment, as_of))
        return {"bars": page, "next_page_token": next_page_token(first, limit, len(available))}

    def _minute_page(
        self, symbols: list[str], starts: list[float], minutes: int, page: tuple[int, int], adjustment: str, as_of: int
    ) -> dict[str, Any]:
        """Minute bars from `starts` on, by symbol, then time. page: number of the first bar, and of bars."""
        first, limit = page
        total = len(starts) * len(symbols)
        page_bars: dict[str, list[dict[str, Any]]] = {}
        for index in range(first, min(first + limit, total)):
            symbol = symbols[index // len(starts)]
            start = starts[index % len(starts)]
            session = self.prices.sessions.current(start)
            if session is None or self._is_removed(symbol, session):
                continue
            bar = minute_bar(self.prices, symbol, session, start, minutes, adjustment, as_of)
            if bar is not None:
                page_bars.setdefault(symbol, []).append(bar)
        return {"bars": page_bars, "next_page_token": next_page_token(first, limit, total)}

    def _is_removed(self, symbol: str, session: Session) -> bool:
        edits = self.flaws.edits
        stale = self.flaws.stale_after
        if stale and session.date.isoformat() > stale:
            return True
        return any(edits.get((symbol, day)) == {} for day in ("", session.date.isoformat()))

    def latest_trades(self, query: Mapping[str, str], moment: float) -> dict[str, Any]:
        """GET stocks/trades/latest: {symbol: trade}, without symbols that have none."""
        self._check_feed(query, moment - _RECENT_SIP_SECONDS - 1, moment)
        trades = {symbol: self._trade(symbol, moment) for symbol in self._symbols(query)}
        return {symbol: trade for symbol, trade in trades.items() if trade is not None}

    def latest_quotes(self, query: Mapping[str, str], moment: float) -> dict[str, Any]:
        """GET stocks/quotes/latest: {symbol: quote} around the latest trade, without symbols that have none."""
        return {
            symbol: {
                "t": trade["t"], "bp": round(trade["p"] * (1 - _HALF_SPREAD), 4), "bs": 1, "bx": "V",
                "ap": round(trade["p"] * (1 + _HALF_SPREAD), 4), "as": 1, "ax": "V", "c": ["R"], "z": "C",
            }
            for symbol, trade in self.latest_trades(query, moment).items()
        }  # fmt: skip

    def corporate_actions(self, query: Mapping[str, str], moment: float) -> dict[str, Any]:
        """GET /v1/corporate-actions: those with an ex-date from start to end, past or announced."""
        parameters = QueryParameters(query, *_ERROR)
        symbols = {s for s in (query.get("symbols") or "").split(",") if s}
        kinds = {k for k in (query.get("types") or "").split(",") if k}
        today = new_york(moment).date()
        start = parameters.day("start", allow_time=False) or today
        end = parameters.day("end", allow_time=False) or today
        limit = parameters.integer("limit", _DEFAULT_ACTIONS_PER_PAGE, _MAX_ACTIONS_PER_PAGE)
        entries = [
            (f"{kind}s", _action_json(action, kind))
            for action in sorted(self.prices.actions, key=lambda a: a.ex_date)
            if start <= date.fromisoformat(action.ex_date) <= end and (not symbols or action.symbol in symbols)
            if (kind := _KINDS[action.kind, action.new > action.old]) in kinds or not kinds
        ]
        first = parameters.page_start()
        page: dict[str, list[dict[str, Any]]] = {}
        for group, entry in entries[first : first + limit]:
            page.setdefault(group, []).append(entry)
        return {"corporate_actions": page, "next_page_token": next_page_token(first, limit, len(entries))}

    def _symbols(self, query: Mapping[str, str]) -> list[str]:
        names = [s for s in (query.get("symbols") or "").split(",") if s]
        if not names:
            raise ApiError(400, None, "symbols is required")
        # Like Alpaca, leave out unknown symbols.
        return [s for s in dict.fromkeys(names) if s in self.prices.symbols]

    def _check_feed(self, query: Mapping[str, str], end: float, moment: float) -> None:
        feed = query.get("feed") or ("sip" if self._sip else "iex")
        if feed not in _FEEDS:
            raise ApiError(400, None, f"invalid feed: {feed}")
        if feed == "sip" and not self._sip and end > moment - _RECENT_SIP_SECONDS:
            raise ApiError(403, None, "subscription does not permit querying recent SIP data")

    def _available_bars(
        self, symbols: list[str], start: float, end: float, moment: float, *, newest_first: bool
    ) -> list[tuple[str, Session]]:
        """(symbol, session) of each bar with start <= midnight in New York <= end; the current one from its open on."""
        session = self.prices.sessions.last_opened(moment)
        if session is None:
            return []
        last = min(new_york(end).date(), session.date)
        days = self.prices.sessions.between(new_york(start).date(), last)
        rows = ((self.prices.row_of(day.date), day) for day in days if start <= day.midnight <= end)
        rows_in_range = [(row, day) for row, day in rows if row is not None]
        if newest_first:
            rows_in_range.reverse()
        bars = []
        for symbol in symbols:
            tradable = self.prices.tradable_rows(symbol, [row for row, _ in rows_in_range])
            bars += [(symbol, day) for (_, day), has_bar in zip(rows_in_range, tradable, strict=True) if has_bar]
        has_flaws = self.flaws != BarFlaws()
        return [(s, day) for s, day in bars if not self._is_removed(s, day)] if has_flaws else bars

    def _bar(self, symbol: str, session: Session, adjustment: str, moment: float, as_of: int) -> dict[str, Any]:
        """One of the available bars, with the changes by tests."""
        row = self.prices.row_of(session.date)
        values = None if row is None else self.prices.bar(symbol, row, adjustment, as_of)
        assert values is not None
        if session.open <= moment < session.close:
            values = self._bar_so_far(symbol, session, values, moment)
        bar: dict[str, Any] = {"t": timestamp(session.midnight)[:19] + "Z"}
        bar |= {key: values[name] for name, key in _BAR_KEYS.items()}
        bar |= {"v": int(values["volume"]), "n": 0, "vw": values["close"]}
        for day in ("", session.date.isoformat()):
            changes = self.flaws.edits.get((symbol, day), {})
            bar = {k: v for k, v in (bar | changes).items() if k not in changes or v is not None}
        return bar

    def _bar_so_far(self, symbol: str, session: Session, values: dict[str, float], moment: float) -> dict[str, float]:
        """Bar of a session that is still open, from its price path up to now. Today's prices are raw prices."""
        path = self.prices.path(symbol, session) or []
        price = self.prices.price_at(symbol, moment)
        price = values["close"] if price is None else price
        path_prices = [p for t, p in path if t <= moment] + [price]
        elapsed = (moment - session.open) / (session.close - session.open)
        ohlc = {"open": path_prices[0], "high": max(path_prices), "low": min(path_prices), "close": price}
        return {**ohlc, "volume": values["volume"] * elapsed}

    def _trade(self, symbol: str, moment: float) -> dict[str, Any] | None:
        last_session = self.prices.sessions.last_opened(moment)
        row = None if last_session is None else self.prices.last_row_of(symbol, last_session.date)
        session = None if row is None else self.prices.sessions.on(self.prices.dates[row])
        price = self.prices.price_at(symbol, moment)
        stale = self.flaws.stale_after
        if session is None or price is None or (stale and session.date.isoformat() > stale):
            return None
        trade_time = min(moment, session.close)
        return {"t": timestamp(trade_time), "x": "V", "p": price, "s": 100, "c": ["@"], "i": int(trade_time), "z": "C"}


def _action_json(action: CorporateAction, kind: str) -> dict[str, Any]:
    entry = {
        "id": str(uuid.uuid5(ID_NAMESPACE, f"action/{action}")),
        "symbol": action.symbol,
        **dict.fromkeys(("ex_date", "process_date", "payable_date"), action.ex_date),
    }
    if kind == "cash_dividend":
        return entry | {"cusip": "", "rate": action.cash, "special": False, "foreign": False}
    cusips = {"cusip": ""} if kind == "forward_split" else {"old_cusip": "", "new_cusip": ""}
    return entry | {"new_rate": action.new, "old_rate": action.old} | cusips


# ---- minute bars --------------------------------------------------------------------------------------------------


def minutes_of(timeframe: str) -> int:
    """Minutes of a timeframe such as "1Min" or "5T". Raises ApiError for one that is not served."""
    match = _TIMEFRAME.match(timeframe)
    if match is None or int(match[1]) not in _LENGTHS:
        timeframes = ", ".join(f"{n}Min" for n in _LENGTHS)
        raise ApiError(400, None, f"invalid timeframe: {timeframe[:20]!r}; this fake server has 1Day and {timeframes}")
    return int(match[1])


def minute_bar(
    prices: Prices, symbol: str, session: Session, start: float, minutes: int, adjustment: str = "raw", as_of: int = -1
) -> dict[str, Any] | None:
    """Bar of `minutes` from `start`; None if the symbol has no bar that day. as_of: row that it is adjusted as of."""
    path = prices.path(symbol, session)
    row = prices.row_of(session.date)
    if path is None or row is None:
        return None
    day = prices.bar(symbol, row, "raw", as_of)
    adjusted = prices.bar(symbol, row, adjustment, as_of)
    if day is None or adjusted is None:
        return None
    factor = adjusted["close"] / day["close"] if day["close"] else 1.0
    end = start + 60.0 * minutes
    times = [t for t, _ in path]
    values = [p for _, p in path]
    first, last = (float(np.interp(t, times, values)) for t in (start, end))
    corners = [p for t, p in path if start < t < end]
    path_prices = [p * factor for p in (first, last, *corners)]
    volume = adjusted["volume"] * _volume_share(session, start, end)
    bar = {"t": timestamp(start)[:19] + "Z", "o": first * factor, "h": max(path_prices), "l": min(path_prices)}
    return bar | {"c": last * factor, "v": int(volume), "n": minutes, "vw": (first + last) / 2 * factor}


def _volume_share(session: Session, start: float, end: float) -> float:
    """Share of the volume of the day between two moments: the integral of a parabola with its low at midday."""
    length = session.close - session.open

    def until(moment: float) -> float:
        x = (moment - session.open) / length - 0.5
        return 0.6 * x + 4 / 3 * x**3

    return (until(end) - until(start)) / (until(session.close) - until(session.open))
