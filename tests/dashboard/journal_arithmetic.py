"""Figures of a paper account from the rows of its journal, with SQL and Decimal and no code of the product."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

ZERO = Decimal(0)
_EVENTS = (
    """SELECT f.at, 'fill', i.run, i.symbol, i.side, f.quantity, f.price, f.fee
       FROM fills f JOIN orders o ON f.order_id = o.id JOIN intents i ON o.intent_id = i.id ORDER BY f.id""",
    """SELECT a.at, a.kind, p.run, a.symbol, '', p.own_change, p.cash, '0'
       FROM action_parts p JOIN corporate_actions a ON p.action_id = a.id ORDER BY p.id""",
    "SELECT at, 'close', '', symbol, '', price, '0', '0' FROM closes ORDER BY id",
    "SELECT at, 'mark', '', session, '', equity, cash, '0' FROM equity ORDER BY id",
)


@dataclass
class Day:
    """One session. profits: by run and symbol [prices, dividends, costs]. values: shares times closes by run."""

    session: str
    start: Decimal
    end: Decimal
    cash: Decimal
    flow: Decimal = ZERO
    profits: dict[tuple[str, str], list[Decimal]] = field(default_factory=dict)
    values: dict[str, Decimal] = field(default_factory=dict)

    @property
    def profit(self) -> Decimal:
        return self.end - self.start - self.flow

    @property
    def rate(self) -> Decimal:
        """Return of the session."""
        return self.profit / self.start


def rows(journal: Path, query: str) -> list[tuple[Any, ...]]:
    """Result of a query."""
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as base:
        return base.execute(query).fetchall()


def capital(journal: Path) -> Decimal:
    """Capital in the last settings."""
    return Decimal(
        str(json.loads(rows(journal, "SELECT content FROM settings ORDER BY id DESC LIMIT 1")[0][0])["capital"])
    )


@dataclass
class Books:
    """An account after the last row. shares: by run and symbol. cash: flows of each run so far."""

    days: list[Day]
    shares: dict[tuple[str, str], Decimal]
    cash: dict[str, Decimal]
    prices: dict[str, Decimal]
    capital: Decimal

    @property
    def equity(self) -> Decimal:
        """Equity at the last prices."""
        return self.capital + sum(self.cash.values(), ZERO) + sum(map(self.value, self.symbols), ZERO)

    @property
    def symbols(self) -> list[str]:
        """Symbols that are held."""
        return sorted({symbol for (_, symbol), count in self.shares.items() if count})

    def value(self, symbol: str) -> Decimal:
        """Value of the shares of a symbol."""
        return self.prices.get(symbol, ZERO) * self.held(symbol)

    def held(self, symbol: str) -> Decimal:
        """Shares of a symbol over all runs."""
        return sum((count for (_, name), count in self.shares.items() if name == symbol), ZERO)

    def equity_of(self, run: str, capital_of_run: Decimal) -> Decimal:
        """Equity of a run at the last prices."""
        values = (count * self.prices.get(name, ZERO) for (owner, name), count in self.shares.items() if owner == run)
        return capital_of_run + self.cash[run] + sum(values, ZERO)


def days(journal: Path) -> list[Day]:
    """All sessions of a journal."""
    return books(journal).days


def books(journal: Path) -> Books:
    """The account, from the rows of the journal in the order of their times."""
    events = sorted((row for query in _EVENTS for row in rows(journal, query)), key=lambda row: str(row[0]))
    shares: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    prices: dict[str, Decimal] = {}
    values: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    gains: dict[tuple[str, str], list[Decimal]] = defaultdict(lambda: [ZERO, ZERO, ZERO])
    cash: dict[str, Decimal] = defaultdict(Decimal)
    flow = ZERO
    sessions: list[Day] = []
    start = equity = capital(journal)
    for _, kind, run, symbol, side, *numbers in events:
        first, second, fee = map(Decimal, numbers)
        if kind == "close":
            prices[symbol] = first
        elif kind == "fill":
            quantity = first if side == "buy" else -first
            shares[run, symbol] += quantity
            cash[run] -= quantity * second + fee
            gains[run, symbol][0] -= quantity * second
            gains[run, symbol][2] -= fee
        elif kind == "transfer":
            flow += second
            cash[run] += second
        elif kind == "mark":
            day = Day(symbol, equity, first, second, flow)
            for (owner, name), count in shares.items():
                value = count * prices.get(name, ZERO)
                gains[owner, name][0] += value - values[owner, name]
                values[owner, name] = value
                day.values[owner] = day.values.get(owner, ZERO) + value
            day.profits = dict(gains)
            sessions.append(day)
            gains = defaultdict(lambda: [ZERO, ZERO, ZERO])
            equity, flow = first, ZERO
        else:
            shares[run, symbol] += first
            cash[run] += second
            gains[run, symbol][1 if kind == "cash_dividend" else 0] += second
    return Books(sessions, shares, cash, prices, start)


def time_weighted_return(sessions: Iterable[Day]) -> Decimal:
    """Compound return of the sessions."""
    growth = Decimal(1)
    for day in sessions:
        growth *= 1 + day.rate
    return growth - 1


def contributions(sessions: Iterable[Day], place: int) -> dict[str, Decimal]:
    """Contribution of each run (place 0) or symbol (place 1) to the return of the sessions."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    growth = Decimal(1)
    for day in sessions:
        for part, amounts in day.profits.items():
            sums[part[place]] += growth * sum(amounts, ZERO) / day.start
        growth *= 1 + day.rate
    return dict(sums)


def profits(sessions: Iterable[Day], place: int) -> dict[str, list[Decimal]]:
    """[prices, dividends, costs] of each run (place 0) or symbol (place 1)."""
    sums: dict[str, list[Decimal]] = defaultdict(lambda: [ZERO, ZERO, ZERO])
    for day in sessions:
        for part, amounts in day.profits.items():
            sums[part[place]] = [a + b for a, b in zip(sums[part[place]], amounts, strict=True)]
    return dict(sums)
