"""Point-in-time universes: a table of when each symbol belonged to an index, so that nothing is bought with hindsight.

A panel of today's members of an index holds only survivors. With a membership table, a symbol can be bought only on
bars on which it was a member; what is held when it leaves is sold at its last close as a member. Prices from before
remain known to features and strategies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.side_tables import column_of, read_side_table
from finrl_pod.errors import DataError
from finrl_pod.types import Panel

SYMBOL, FROM, TO = ("symbol", "ticker"), ("from", "start", "start_date"), ("to", "end", "end_date")


class Spell(NamedTuple):
    """A symbol's membership from one day to another, both included; None: still a member."""

    symbol: str
    first: pd.Timestamp
    last: pd.Timestamp | None


def read_membership(path: Path) -> list[Spell]:
    """Read a CSV file with columns symbol, from and to; an empty `to` is a member to this day.

    Raises DataError naming the line for a missing column, a date that is none, and a spell that ends before it begins.
    """
    table = read_side_table(path, "memberships")
    found = []
    for aliases in (SYMBOL, FROM, TO):
        cells = column_of(table, aliases)
        if cells is None:
            raise DataError(f"{path} has no column {aliases[0]!r}: a membership table has symbol, from and to")
        found.append(cells)
    spells = []
    for i, (symbol, first, last) in enumerate(zip(*found, strict=True)):
        where = f"{path}, line {i + 2}"
        try:
            begin, end = first_moment(first), last_moment(last) if last else None
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        if end is not None and end < begin:
            raise DataError(f"{where}: {symbol} leaves on {last}, before it joins on {first}; swap the dates")
        spells.append(Spell(symbol, begin, end))
    if not spells:
        raise DataError(f"{path} has no rows: a membership table has symbol, from and to")
    return spells


def with_membership(panel: Panel, spells: Sequence[Spell]) -> Panel:
    """The panel with `members` [T, N]. Symbols that it lacks are ignored.

    Raises DataError if none of its symbols is ever a member on its bars, or one has no spell at all.
    """
    column = {symbol: n for n, symbol in enumerate(panel.symbols)}
    without = [symbol for symbol in panel.symbols if symbol not in {spell.symbol for spell in spells}]
    if without:
        raise DataError(
            f"{without[0]} of panel {panel.name!r} is not in the membership table"
            f"{f', nor are {len(without) - 1} more' if len(without) > 1 else ''}; add its dates or drop it"
        )
    members = np.zeros(panel.close.shape, dtype=bool)
    for spell in spells:
        if spell.symbol in column:
            inside = panel.times >= spell.first.to_datetime64()
            if spell.last is not None:
                inside &= panel.times <= spell.last.to_datetime64()
            members[inside, column[spell.symbol]] = True
    if not (members & panel.tradable).any():
        raise DataError(f"no symbol of panel {panel.name!r} is a member on any of its bars; check the table's dates")
    return dataclasses.replace(panel, members=members)
