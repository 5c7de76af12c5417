"""Small CSV tables that accompany a panel: memberships, corporate actions, deposits and withdrawals.

With memberships, a symbol can be bought only on bars on which it was a member; holdings in one that leaves are sold at
its last close as a member. Splits rescale the prices and volumes before them. Dividends are paid in cash (the column
`dividend` of the panel) or reinvested: they reduce the prices before them (the adjusted prices of CRSP and Yahoo).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from finrl_pod.data.dates import first_moment, last_moment, stamp
from finrl_pod.data.flaws import check, sentences
from finrl_pod.data.panel import make_panel
from finrl_pod.errors import DataError
from finrl_pod.types import Bools, Floats, Panel, Times

MAX_BYTES = 50_000_000
SYMBOL = ("symbol", "ticker")
FROM = ("from", "start", "start_date")
TO = ("to", "end", "end_date")
DATE = ("date", "ex_date", "ex-date", "ex date")
SPLIT = ("split", "splits", "stock splits")
DIVIDEND = ("dividend", "dividends")
PRICES = ("open", "high", "low", "close", "dividend")
MAX_RATIO = 1_000.0
DATE_LENGTH = len("2020-01-31")
CLEAR_SPLIT = np.log(1.4)  # smaller splits may be hidden by the move of the market on that day

Dividends = Literal["cash", "reinvested"]


def read_side_table(path: Path, contents: str) -> pd.DataFrame:
    """All cells as text, columns named in lower case. contents: what the rows are, for the message on a large file.

    Raises DataError for a file that cannot be read, is no CSV table or has more than `MAX_BYTES`.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path} has more than {MAX_BYTES // 1_000_000} MB, too many for a table of {contents}")
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, pd.errors.ParserError) as error:  # among them text that is not UTF-8
        raise DataError(f"{path} is not a CSV table: {' '.join(str(error).split())}") from None
    table.columns = [str(name).strip().lower() for name in table.columns]
    # Of columns with the same name the last counts.
    return table.loc[:, ~table.columns.duplicated(keep="last")]


def column_of(table: pd.DataFrame, aliases: Sequence[str]) -> pd.Series[str] | None:
    """The stripped cells of the first of these columns that the table has, None if it has none."""
    return next((table[alias].str.strip() for alias in aliases if alias in table.columns), None)


# ---------------------------------------------------------------------- memberships


class Spell(NamedTuple):
    """Membership of a symbol from one day to another, both included; None: still a member."""

    symbol: str
    first: pd.Timestamp
    last: pd.Timestamp | None


def read_membership(path: Path) -> list[Spell]:
    """Read a CSV file with columns symbol, from and to; an empty `to` is a member to this day.

    Raises DataError naming the line for a missing column, a date that is none, and a spell that ends before it begins.
    """
    table = read_side_table(path, "memberships")
    columns = {aliases[0]: column_of(table, aliases) for aliases in (SYMBOL, FROM, TO)}
    for name, cells in columns.items():
        if cells is None:
            raise DataError(f"{path} has no column {name!r}: a membership table has symbol, from and to")
    spells = []
    for i, (symbol, first, last) in enumerate(zip(*columns.values(), strict=True)):
        location = f"{path}, line {i + 2}"
        try:
            begin, end = first_moment(first), last_moment(last) if last else None
        except DataError as error:
            raise DataError(f"{location}: {error}") from None
        if end is not None and end < begin:
            raise DataError(f"{location}: {symbol} leaves on {last}, before it joins on {first}; swap the dates")
        spells.append(Spell(symbol, begin, end))
    if not spells:
        raise DataError(f"{path} has no rows: a membership table has symbol, from and to")
    return spells


def with_membership(panel: Panel, spells: Sequence[Spell]) -> Panel:
    """The panel with `members` [T, N]. Symbols that it lacks are ignored.

    Raises DataError if none of its symbols is ever a member on its bars, or one has no spell at all.
    """
    column = {symbol: n for n, symbol in enumerate(panel.symbols)}
    missing_symbols = [symbol for symbol in panel.symbols if symbol not in {spell.symbol for spell in spells}]
    if missing_symbols:
        others_text = f", nor are {len(missing_symbols) - 1} more" if len(missing_symbols) > 1 else ""
        raise DataError(
            f"{missing_symbols[0]} of panel {panel.name!r} is not in the membership table{others_text}; add its dates "
            "or drop it"
        )
    members = np.zeros(panel.close.shape, dtype=bool)
    for spell in spells:
        if spell.symbol in column:
            is_member = panel.times >= spell.first.to_datetime64()
            if spell.last is not None:
                is_member &= panel.times <= spell.last.to_datetime64()
            members[is_member, column[spell.symbol]] = True
    if not (members & panel.tradable).any():
        raise DataError(
            f"no symbol of panel {panel.name!r} is a member on any of its bars; check the dates of the table"
        )
    return dataclasses.replace(panel, members=members)


# ---------------------------------------------------------------------- corporate actions


class CorporateAction(NamedTuple):
    """Effective before the open of `date`. split: new shares per old one. dividend: cash per share held since before.

    A dividend on the date of a split is one per new share.
    """

    symbol: str
    date: pd.Timestamp
    split: float = 1.0
    dividend: float = 0.0


def read_actions(path: Path) -> list[CorporateAction]:
    """Read a CSV file with columns symbol, date and split (new per old share: 4, or 4:1), dividend, or both.

    Empty cells and zeros mean none. Raises DataError naming the line for a missing column, a date that is none, and a
    split or dividend that is not positive.
    """
    table = read_side_table(path, "actions")
    symbols, dates, splits, dividends = (column_of(table, aliases) for aliases in (SYMBOL, DATE, SPLIT, DIVIDEND))
    if symbols is None or dates is None or (splits is None and dividends is None):
        raise DataError(
            f"{path} must have the columns symbol, date, and split or dividend; got {', '.join(table.columns)}"
        )
    actions = []
    for i, (symbol, date) in enumerate(zip(symbols, dates, strict=True)):
        location = f"{path}, line {i + 2}"
        ratio = 1.0 if splits is None else _ratio(splits[i], location)
        dividend = 0.0 if dividends is None else _amount(dividends[i], location)
        if not symbol:
            raise DataError(f"{location}: the symbol is missing")
        try:
            day = first_moment(date[:DATE_LENGTH], "the date")  # as written, whatever its zone
        except DataError as error:
            raise DataError(f"{location}: {error}") from None
        if ratio != 1.0 or dividend:
            actions.append(CorporateAction(symbol, day, ratio, dividend))
    if not actions:
        raise DataError(f"{path} has no action: a row needs a split or a dividend")
    return actions


def with_actions(
    panel: Panel, actions: Sequence[CorporateAction], dividends: Dividends = "cash", *, allow_none: bool = False
) -> Panel:
    """The panel with prices and volumes adjusted for splits, and its dividends in cash or reinvested.

    panel: prices as traded. An action between two bars takes effect on the later one; actions before the second bar of
    a ticker, after its last, or of other symbols are left out. Raises DataError for adjusted prices, for prices that do
    not move as a split says, for two splits of a ticker on one bar, for a dividend that is not below the close before,
    and if no action applies unless `allow_none`.
    """
    if panel.adjusted:
        raise DataError(f"the prices of {panel.name!r} are adjusted already; corporate actions need prices as traded")
    split, cash_dividends = _tables(panel, actions)
    if not (allow_none or (split != 1).any() or cash_dividends.any()):
        raise DataError(
            f"no action in the table is of a symbol and a date of panel {panel.name!r}; check its symbols and dates"
        )
    _check_splits(panel, split)
    # A price before a split counts in shares after it; the same for dividends per share.
    later_ratio = np.cumprod(split[::-1], axis=0)[::-1]
    scale = np.ones_like(split)
    scale[:-1] = 1 / later_ratio[1:]
    columns = {name: getattr(panel, name) * scale for name in panel.columns if name in PRICES}
    if panel.volume is not None:
        columns["volume"] = panel.volume / scale
    if panel.spread is not None:
        columns["spread"] = panel.spread
    if cash_dividends.any():
        columns["dividend"] = (np.nan_to_num(panel.dividend) if panel.dividend is not None else 0.0) + cash_dividends
        columns["dividend"] = np.where(panel.tradable, columns["dividend"] * scale, np.nan)
    treatment = "paid in cash" if dividends == "cash" else "reinvested"
    flaw = f"Then adjusted for the splits in its table of actions; dividends are {treatment}."
    adjusted_panel = _rebuilt(panel, columns, adjusted=False, flaw=flaw)
    return adjusted_panel if dividends == "cash" else with_dividends_reinvested(adjusted_panel)


def with_dividends_reinvested(panel: Panel) -> Panel:
    """The panel with its cash dividends turned into adjusted prices, as if reinvested at the close before.

    Prices before a dividend d with the close p before it are multiplied by 1 - d / p (the adjustment factor of CRSP).
    Volumes stay, and `split_close` has the closes with which they give the money traded.
    """
    if panel.dividend is None:
        return dataclasses.replace(panel, adjusted=True)
    previous_close = pd.DataFrame(panel.close).ffill().shift().to_numpy()
    with np.errstate(invalid="ignore"):
        factor = np.where(np.nan_to_num(panel.dividend) > 0, 1 - np.nan_to_num(panel.dividend) / previous_close, 1.0)
    factor = np.where(np.isfinite(factor), factor, 1.0)  # no account holds a ticker before its first bar
    scale = np.ones_like(factor)
    scale[:-1] = np.cumprod(factor[::-1], axis=0)[::-1][1:]
    columns = {name: getattr(panel, name) for name in panel.columns if name != "dividend"}
    columns = {name: x * scale if name in PRICES else x for name, x in columns.items()}
    if panel.volume is not None:
        columns["split_close"] = panel.close
    return _rebuilt(panel, columns, adjusted=True)


def _rebuilt(panel: Panel, columns: dict[str, Floats], *, adjusted: bool, flaw: str = "") -> Panel:
    """A panel with other columns, checked again; flaws found by the checks are computed for the new prices."""
    check_messages = set(sentences(check(panel)))
    rebuilt_panel = make_panel(
        panel.times,
        panel.symbols,
        columns,
        name=panel.name,
        source=panel.source,
        bar=panel.bar,
        adjusted=adjusted,
        benchmark=panel.benchmark,
        sectors=panel.sectors,
        flaws=[*(f for f in panel.flaws if f not in check_messages), *([flaw] if flaw else [])],
        allow_gaps=True,
        cash_rates=panel.cash_rates,
    )
    return dataclasses.replace(rebuilt_panel, members=panel.members, read_as=panel.read_as)


def _tables(panel: Panel, actions: Sequence[CorporateAction]) -> tuple[Floats, Floats]:
    """(splits, dividends) [T, N] of the bars on which they take effect: shares after per share before, cash per share.

    Dividends are stated in shares of their own date.
    """
    column_of_symbol = {symbol: n for n, symbol in enumerate(panel.symbols)}
    bars = [np.flatnonzero(column) for column in panel.tradable.T]
    split = np.ones_like(panel.close)
    cash_dividends = np.zeros_like(panel.close)
    for action in sorted(actions, key=lambda a: a.date):
        n = column_of_symbol.get(action.symbol)
        if n is None:
            continue
        i = int(np.searchsorted(panel.times[bars[n]], action.date.to_datetime64()))
        if not 0 < i < len(bars[n]):
            continue
        t = int(bars[n][i])
        if action.split != 1.0 and split[t, n] != 1.0:
            raise DataError(
                f"{action.symbol} has two splits on {stamp(panel.times[t], panel.bar)}; combine them in one row"
            )
        split[t, n] *= action.split
        cash_dividends[t, n] = cash_dividends[t, n] / action.split + action.dividend
    return split, cash_dividends


def _check_splits(panel: Panel, split: Floats) -> None:
    """Raises DataError for a split on which the price moves as if it were adjusted already."""
    previous_close = pd.DataFrame(panel.close).ffill().shift().to_numpy()
    is_clear: Bools = np.abs(np.log(split)) > CLEAR_SPLIT
    for t, n in np.argwhere(is_clear):
        move = np.log(panel.close[t, n] / previous_close[t, n])
        expected_move = -np.log(split[t, n])
        if abs(move - expected_move) > abs(move):
            raise DataError(
                f"{panel.symbols[n]} moves from {previous_close[t, n]:g} to {panel.close[t, n]:g} on "
                f"{stamp(panel.times[t], panel.bar)}, not as its split of {split[t, n]:g} says: these prices seem to "
                "be adjusted for splits already; leave the splits out, and state dividends per share of today"
            )


def _ratio(text: str, location: str) -> float:
    """A split as new shares per old one: "4", "4:1", "4/1", "1.5"; none if empty or 0."""
    try:
        ratio = float(Fraction((text or "1").replace(":", "/")))
    except (ValueError, ZeroDivisionError):
        ratio = np.nan
    if ratio == 0:
        return 1.0
    if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
        raise DataError(f"{location}: a split is new shares per old one, such as 4, 4:1 or 0.1, got {text!r}")
    return ratio


def _amount(text: str, location: str) -> float:
    try:
        amount = float(text or 0)
    except ValueError:
        amount = np.nan
    if not 0 <= amount < np.inf:
        raise DataError(f"{location}: a dividend is cash per share, such as 0.24, got {text!r}")
    return float(amount)


# ---------------------------------------------------------------------- deposits and withdrawals


def read_flows(source: str | Path | float, times: Times) -> Floats:
    """Currency [T] that is paid in at the close of each bar, negative if it is taken out.

    source: a CSV file with columns date and amount, or an amount for the first bar of each month after the start. A
    flow between two bars counts at the later one. times: [T]. Raises DataError for a file that cannot be read or has
    other columns, and naming the line for an amount or date that is none and a date outside the bars.
    """
    flows = np.zeros(len(times))
    monthly_amount = pd.to_numeric(str(source), errors="coerce")
    if np.isfinite(monthly_amount):
        months = times.astype("datetime64[M]")
        flows[1:][months[1:] != months[:-1]] = monthly_amount
        return flows
    table = read_side_table(Path(str(source)), "flows")
    if set(table.columns) != {"date", "amount"} or table.empty:
        names = f"{', '.join(table.columns):.80}"
        raise DataError(f"{source} must have rows with the columns date and amount, got {len(table)} with {names}")
    amounts = pd.to_numeric(table["amount"], errors="coerce")
    for line, (date, text, amount) in enumerate(zip(table["date"], table["amount"], amounts, strict=True), 2):
        location = f"{source}, line {line}"
        if not np.isfinite(amount):
            raise DataError(f"{location}: the amount must be a number such as 500 or -500, got {text!r:.80}")
        bar = int(np.searchsorted(times, first_moment(date, f"{location}: the date").to_datetime64()))
        if not 0 < bar < len(times):
            first, last = (str(times[i])[:DATE_LENGTH] for i in (0, -1))
            raise DataError(
                f"{location}: money can be paid in or out after {first} and up to {last}, got {date}; change the date "
                "or the dates of the backtest"
            )
        flows[bar] += amount
    return flows
