"""Tools shared by all sources but the sample: tables to panels, adjusted closes, checks and retries of downloads.

Long tables have one row per ticker and bar, wide ones one column of closes per ticker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd

from finrl_pod.data.dates import stamp
from finrl_pod.data.flaws import SPLITS, UNFINISHED
from finrl_pod.data.panel import make_panel
from finrl_pod.errors import DataError, MissingSymbols
from finrl_pod.prices import PANEL_COLUMNS, Floats, Panel

ADJUSTED_CLOSE = "adj close"
SPLIT = "split"  # new shares per old one; 0 or blank on bars without a split
NEIGHBOURS = 5  # bars on each side whose median ratio a bar is compared with
RATIO_TOLERANCE = np.log(1.1)  # of the ratio: adjusted and raw prices are rounded
# Steps of the logarithm of the ratio that a split can be; a dividend that falls on one by chance is taken for a split.
SPLIT_RATIOS = {1.1, *(new / old for old in range(2, 6) for new in range(old + 1, 11))}
SPLIT_STEPS = np.log(sorted({*SPLIT_RATIOS, *(new / old for new, old in SPLITS)}))
# of such a step: a cent of the lowest price, for rounding, but within these limits
SPLIT_PRECISION = (0.0002, 0.002)
MAX_NOTES = 10
_LENGTH = {bar: pd.Timedelta(length) for bar, length in (("1d", "1D"), ("1h", "1h"), ("15m", "15min"), ("1m", "1min"))}

Result = TypeVar("Result")


def panel_of_rows(
    rows: pd.DataFrame,
    *,
    bar: str,
    source: str,
    name: str = "",
    adjusted: bool = True,
    flaws: Sequence[str] = (),
    allow_gaps: bool = False,
    location: Callable[[int], str] | None = None,
) -> Panel:
    """Build a panel from a long table, over the union of all tickers' bars.

    rows: columns "time" (naive datetime64, UTC; for daily bars the date of the session), "symbol" (str), panel columns
    (float64, NaN where missing) and optionally "sector" (str, one for each ticker). Tickers keep the order of their
    first row. location: source of row i for messages.
    Raises DataError for no rows, duplicate bars, times of a ticker that decrease, a ticker without a sector or with
    several, and as `make_panel`.
    """
    if rows.empty:
        raise DataError("there are no prices: a panel needs at least one bar of one ticker")
    codes, names = pd.factorize(rows["symbol"])
    symbols = [str(name) for name in names]
    times = rows["time"].to_numpy(dtype="datetime64[ns]")
    _check_times(times, codes, symbols, bar, location)
    union, t = np.unique(times, return_inverse=True)
    shape = len(union), len(symbols)
    columns = {column: np.full(shape, np.nan) for column in PANEL_COLUMNS if column in rows.columns}
    for column, values in columns.items():
        values[t, codes] = rows[column].to_numpy(dtype=np.float64)
    origin = np.full(shape, -1)
    origin[t, codes] = np.arange(len(rows))

    def locate(t: int, n: int) -> str:
        row = int(origin[t, n])
        return location(row) if location is not None and row >= 0 else ""

    return make_panel(
        union,
        symbols,
        columns,
        name=name,
        source=source,
        bar=bar,
        adjusted=adjusted,
        sectors=_sectors(rows, codes, symbols, location) if "sector" in rows.columns else None,
        flaws=flaws,
        allow_gaps=allow_gaps,
        locate=locate,
    )


def _sectors(
    rows: pd.DataFrame,
    codes: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    symbols: Sequence[str],
    location: Callable[[int], str] | None,
) -> list[str]:
    """The sector of each symbol. Raises DataError for a ticker without a sector or with several."""
    text = rows["sector"].to_numpy(dtype=str)
    first = np.unique(codes, return_index=True)[1]
    for row in np.flatnonzero((text != text[first][codes]) | (text == ""))[:1]:
        prefix = f"{location(int(row))}: " if location else ""
        sectors = f"the sectors {str(text[first[codes[row]]])!r} and {str(text[row])!r}"
        fact = f"{symbols[codes[row]]} has {sectors if text[row] else 'no sector'}"
        raise DataError(f"{prefix}{fact}: every ticker needs one, the same on all its bars")
    return [str(sector) for sector in text[first]]


def check_delivered(
    symbols: Sequence[str], delivered_symbols: Sequence[str], source: str, reasons: Sequence[str] = ()
) -> None:
    """Raises MissingSymbols naming the missing tickers, with reasons of the source if any."""
    if missing := [s for s in symbols if s not in set(delivered_symbols)]:
        explanation = f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""
        raise MissingSymbols(
            f"{source} has no bars in that range for {', '.join(missing)}{explanation}: nothing was stored; "
            "correct the tickers or the dates, or leave them out",
            missing,
        )


def clip(rows: pd.DataFrame, start: pd.Timestamp, end: pd.Timestamp) -> pd.DataFrame:
    """Select the rows with start <= time <= end."""
    return rows[(rows["time"] >= start) & (rows["time"] <= end)].reset_index(drop=True)


def unfinished_bar(rows: pd.DataFrame, bar: str) -> tuple[str, ...]:
    """A flaw if the last bar may be incomplete: it began less than its length ago."""
    last = rows["time"].max()
    age = pd.Timestamp.now("UTC").tz_localize(None) - last
    if age >= _LENGTH[bar]:
        return ()
    return (f"The last bar, {stamp(last.to_datetime64(), bar)}, {UNFINISHED}",)


def _check_times(
    times: np.ndarray[tuple[int, ...], np.dtype[np.datetime64]],
    codes: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    symbols: Sequence[str],
    bar: str,
    location: Callable[[int], str] | None,
) -> None:
    """Raises DataError unless the times of each ticker increase from row to row."""
    order = np.argsort(codes, kind="stable")
    is_same_symbol = np.diff(codes[order]) == 0
    steps = np.diff(times[order].astype(np.int64))
    wrong = np.flatnonzero(is_same_symbol & (steps <= 0)) + 1
    if not wrong.size:
        return
    wrong_row = wrong[np.argmin(order[wrong])]
    row = int(order[wrong_row])
    subject = f"{location(row)}: {symbols[codes[row]]}" if location else symbols[codes[row]]
    time = stamp(times[row], bar)
    if steps[wrong_row - 1] == 0:
        fix = "remove one" if bar != "1d" else "remove one, or name the bar (--bar 1h, 15m or 1m) of intraday prices"
        raise DataError(f"{subject} has two bars on {time}: {fix}")
    previous_time = stamp(times[order[wrong_row - 1]], bar)
    raise DataError(f"{subject} goes back in time, from {previous_time} to {time}: sort the rows by time")


def adjusted_rows(rows: pd.DataFrame, *, is_split_adjusted: bool = False) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Rows with prices scaled by adjusted close over close, without the adjusted close; and notes on wrong ratios.

    rows: columns "time", "symbol", "close", "adj close" and any of open, high, low, split; in any order.
    is_split_adjusted: closes and volumes are adjusted for splits already.

    Dividends and splits move the ratio from one level to another. A bar whose ratio lies outside the levels before and
    after it has a wrong close or a wrong adjusted close: its open, high and low are scaled by the level before it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (rows[ADJUSTED_CLOSE] / rows["close"]).to_numpy(dtype=np.float64)
    price_columns = [name for name in ("open", "high", "low") if name in rows]
    notes: list[str] = []
    factors = ratio.copy()
    for row, level in _wrong_ratios(rows, ratio) if price_columns else ():
        factors[row] = level
        bar = rows.iloc[row]
        notes.append(
            f"{bar['symbol']} on {str(bar['time']).removesuffix(' 00:00:00')} has a close of {bar['close']:g} beside "
            f"an adj close of {bar[ADJUSTED_CLOSE]:g}, a ratio of {ratio[row]:.4g}, and {level:.4g} on the bars around "
            f"it: one of the two is wrong; {' and '.join(price_columns)} were adjusted by {level:.4g}."
        )
    if len(notes) > MAX_NOTES:
        notes = [*notes[:MAX_NOTES], f"There are {len(notes) - MAX_NOTES} more bars with a wrong ratio of adj close."]
    scaled_columns = {name: rows[name] * factors for name in price_columns}
    if "volume" in rows:
        if is_split_adjusted:
            later_split = np.ones(len(rows))
        else:
            later_split = _later_stated_splits(rows) if SPLIT in rows else _later_splits(rows, factors)
        scaled_columns |= {"volume": rows["volume"] * later_split, "split_close": rows["close"] / later_split}
    rows = rows.assign(**scaled_columns, close=rows[ADJUSTED_CLOSE])
    return rows.drop(columns=[ADJUSTED_CLOSE, SPLIT], errors="ignore"), tuple(notes)


def _later_stated_splits(rows: pd.DataFrame) -> Floats:
    """New shares per share of a row, by the column "split" of the later rows of its ticker."""
    split = rows[SPLIT].where(rows[SPLIT] > 0, 1.0)
    newest_first = rows.assign(split=split).sort_values("time", ascending=False, kind="stable")
    later_split = newest_first.groupby("symbol", observed=True)[SPLIT].cumprod() / newest_first[SPLIT]
    return later_split.reindex(rows.index).to_numpy(dtype=np.float64)


def _later_splits(rows: pd.DataFrame, factors: Floats) -> Floats:
    """New shares per share of a row, by the splits of its ticker after it.

    factors: adjusted close over close. A split moves them to a level that is a simple multiple of the one before, and
    moves the close itself. Closes of Yahoo are adjusted for splits already: dividends alone move the factors, by less
    or by no simple multiple. Stock dividends below 11:10 are not recognised.
    """
    later_split = np.ones(len(rows))
    close = rows["close"].to_numpy(dtype=np.float64)
    codes = pd.factorize(rows["symbol"])[0]
    usable = np.isfinite(factors) & (factors > 0) & (close > 0)
    order = np.lexsort((rows["time"].to_numpy(), codes))
    order = order[usable[order]]
    lowest = close * np.minimum(factors, 1)
    for symbol_rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        steps = np.diff(np.log(factors[symbol_rows]))
        moves = np.diff(np.log(close[symbol_rows]))
        split = SPLIT_STEPS[np.abs(steps[:, None] - SPLIT_STEPS).argmin(1)]
        precision = np.clip(0.01 / np.minimum(lowest[symbol_rows[1:]], lowest[symbol_rows[:-1]]), *SPLIT_PRECISION)
        is_split = (np.abs(steps - split) < precision) & (np.abs(moves + split) < np.abs(split) / 2)
        splits = np.where(is_split, split, 0.0)
        later_split[symbol_rows[:-1]] = np.exp(np.cumsum(splits[::-1])[::-1])
    return later_split


def _wrong_ratios(rows: pd.DataFrame, ratio: Floats) -> list[tuple[int, float]]:
    """Rows whose ratio lies outside the levels on both sides, and the level before them.

    The first and the last bar of a ticker have one side only: there a split cannot be told from a wrong price.
    """
    wrong_rows: list[tuple[int, float]] = []
    codes = pd.factorize(rows["symbol"])[0]
    usable = np.isfinite(ratio) & (ratio > 0)
    order = np.lexsort((rows["time"].to_numpy(), codes))
    order = order[usable[order]]
    for symbol_rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        logs = pd.Series(np.log(ratio[symbol_rows]))
        level_before = logs.rolling(NEIGHBOURS, min_periods=1).median().shift(1).to_numpy()
        level_after = logs[::-1].rolling(NEIGHBOURS, min_periods=1).median().shift(1)[::-1].to_numpy()
        is_outside = (logs > np.maximum(level_before, level_after) + RATIO_TOLERANCE) | (
            logs < np.minimum(level_before, level_after) - RATIO_TOLERANCE
        )
        wrong_rows += [(int(symbol_rows[i]), float(np.exp(level_before[i]))) for i in np.flatnonzero(is_outside)]
    return wrong_rows


@dataclass(frozen=True)
class Retry:
    """Retry policy of a source.

    attempts: calls in total. first_wait: seconds before the second call, doubled with jitter up to longest_wait.
    timeout: seconds per request.
    """

    attempts: int = 4
    first_wait: float = 0.5
    longest_wait: float = 8.0
    timeout: float = 15.0

    def call(self, function: Callable[[], Result], transient: Callable[[BaseException], bool]) -> Result:
        """Call `function` until it succeeds; raises its error if not `transient`, or after the last attempt."""
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

        retrying = Retrying(
            stop=stop_after_attempt(self.attempts),
            wait=wait_random_exponential(multiplier=self.first_wait, max=self.longest_wait),
            retry=retry_if_exception(transient),
            reraise=True,
        )
        return retrying(function)
