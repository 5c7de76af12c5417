"""Continue a stored panel with newer prices of its source: later bars are appended, and history is re-adjusted.

Bars that both have decide. On them, the newer prices of a symbol are the stored ones times one factor. After a split or
a dividend it differs from 1, and the earlier prices of the symbol are multiplied by it. Symbols may join or end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from finrl_pod.data.dates import stamp
from finrl_pod.data.flaws import JUMP, PRICES, check, is_unfinished, sentences
from finrl_pod.data.panel import between, make_panel
from finrl_pod.errors import DataError
from finrl_pod.prices import Benchmark, Bools, Floats, Panel, Times

TOLERANCE = 1e-5  # relative, of prices that are not rounded
MAX_DECIMALS = 6  # of rounded prices
# Of the ratio of columns that have factors of their own. Volumes are corrected for days; the smallest split is 11:10.
RATIO_TOLERANCES = {"volume": 0.05, "split_close": 1e-4}
LATE = np.timedelta64(7, "D")  # a symbol without a bar for longer has ended
RENAME_BARS = 5  # common bars, from which a symbol that joins with the prices of an ended one is its new name


@dataclass(frozen=True)
class PriceUpdate:
    """A stored panel continued with newer prices.

    added_bars: their number. ended_symbols: symbols that traded until now. price_factors: factors other than 1 on the
    earlier prices, by symbol. new_names: ended symbol to the symbol that joined with its prices. unchecked_symbols:
    symbols without a bar that both have, so that a split or dividend in between is unknown.
    """

    panel: Panel
    added_bars: int
    joined_symbols: tuple[str, ...]
    ended_symbols: tuple[str, ...]
    price_factors: Mapping[str, float]
    new_names: Mapping[str, str]
    unchecked_symbols: tuple[str, ...]


def continue_panel(stored_panel: Panel, newer: Panel) -> PriceUpdate:
    """Continue a stored panel with the later bars of newer prices.

    A symbol that the newer prices lack keeps its history. A symbol that joins is a member of the universe from the
    first added bar on. Its earlier prices are for look-backs; a new name of an ended symbol has the history of both.

    Raises DataError for newer prices that end before the stored ones, lack one of their columns or the index,
    contradict the stored prices on a common bar, or have no such bar and do not follow within a week without a jump.
    """
    _check_comparable(stored_panel, newer)
    base_panel = stored_panel
    if any(map(is_unfinished, stored_panel.flaws)) and len(stored_panel.times) > 1:
        base_panel = between(stored_panel, None, pd.Timestamp(stored_panel.times[-2]))
    is_later = newer.times > base_panel.times[-1]
    times = np.concatenate([base_panel.times, newer.times[is_later]])
    trades_later = newer.tradable[is_later].any(0)
    joined_symbols = [
        s for s, trades in zip(newer.symbols, trades_later, strict=True) if trades and s not in base_panel.symbols
    ]
    symbols = (*base_panel.symbols, *joined_symbols)
    stored_prices, newer_prices = (_aligned_prices(panel, times, symbols) for panel in (base_panel, newer))
    new_names = _new_names(stored_prices, newer_prices, len(base_panel.symbols))
    for ended_symbol, joined_symbol in new_names.items():
        stored_prices.copy_history(ended_symbol, joined_symbol)
    factors = np.array([_price_factor(stored_prices, newer_prices, n, base_panel) for n in range(len(symbols))])
    panel = make_panel(
        times,
        symbols,
        _joint_columns(stored_prices, newer_prices, factors),
        name=base_panel.name,
        source=base_panel.source,
        bar=base_panel.bar,
        adjusted=base_panel.adjusted,
        benchmark=_benchmark(base_panel, newer, times),
        sectors=_sectors(base_panel, newer, joined_symbols),
        flaws=_flaws_of_sources(base_panel, newer),
        cash_rates=base_panel.cash_rates,
        allow_gaps=True,
    )
    panel = dataclasses.replace(panel, members=_members(base_panel, panel), read_as=newer.read_as)
    added_bars = len(times) - len(stored_panel.times)
    return PriceUpdate(
        panel=panel,
        added_bars=added_bars,
        joined_symbols=tuple(joined_symbols),
        ended_symbols=_ended_symbols(stored_panel, newer, panel) if added_bars else (),
        price_factors={s: float(factor) for s, factor in zip(symbols, factors, strict=True) if factor != 1.0},
        new_names=new_names,
        unchecked_symbols=_unchecked_symbols(stored_prices, newer_prices),
    )


def _check_comparable(stored_panel: Panel, newer: Panel) -> None:
    name = f"the newer prices of {stored_panel.name!r}"
    last, stored_last = (stamp(panel.times[-1], panel.bar) for panel in (newer, stored_panel))
    if newer.times[-1] < stored_panel.times[-1]:
        raise DataError(f"{name} end on {last}, before the end of the stored prices, {stored_last}: those are kept")
    optional = ("dividend", "split_close")
    missing_columns = [column for column in stored_panel.columns if column not in (*newer.columns, *optional)]
    if missing_columns:
        raise DataError(f"{name} have no column {missing_columns[0]!r}, and the stored ones have: add it")
    if stored_panel.benchmark is not None and newer.benchmark is None:
        raise DataError(f"{name} lack the index {stored_panel.benchmark.name}: add it, or replace the stored prices")


@dataclass(frozen=True)
class _AlignedPrices:
    """Prices of a panel on other axes. trades: [T, N]. columns: [T, N] each, NaN where a symbol does not trade."""

    times: Times
    symbols: Sequence[str]
    trades: Bools
    columns: dict[str, Floats]

    def column(self, name: str) -> Floats:
        """A column; without it no dividends, and closes as those adjusted for splits alone."""
        if name in self.columns:
            return self.columns[name]
        return self.columns["close"] if name == "split_close" else np.where(self.trades, 0.0, np.nan)

    def copy_history(self, source: str, target: str) -> None:
        """Give a symbol the prices of another one."""
        for table in (self.trades, *self.columns.values()):
            table[:, self.symbols.index(target)] = table[:, self.symbols.index(source)]


def _aligned_prices(panel: Panel, times: Times, symbols: Sequence[str]) -> _AlignedPrices:
    """The prices of a panel at some times, of some symbols; a symbol that the panel lacks does not trade."""
    rows = np.flatnonzero(np.isin(panel.times, times))
    target_rows = np.searchsorted(times, panel.times[rows])
    trades = np.zeros((len(times), len(symbols)), dtype=bool)
    columns = {column: np.full(trades.shape, np.nan) for column in panel.columns}
    for n, symbol in enumerate(panel.symbols):
        if symbol in symbols:
            target = symbols.index(symbol)
            trades[target_rows, target] = panel.tradable[rows, n]
            for column, table in columns.items():
                table[target_rows, target] = getattr(panel, column)[rows, n]
    return _AlignedPrices(times, symbols, trades, columns)


def _new_names(stored_prices: _AlignedPrices, newer_prices: _AlignedPrices, count: int) -> dict[str, str]:
    """Ended symbols, each to the symbol that joins with its prices on the common bars. count: stored symbols."""
    symbols = newer_prices.symbols
    names = {}
    for n in map(int, np.flatnonzero(~newer_prices.trades[:, :count].any(0))):
        for k in range(count, len(symbols)):
            rows = stored_prices.trades[:, n] & newer_prices.trades[:, k]
            if rows.sum() < RENAME_BARS:
                continue
            closes = stored_prices.columns["close"][rows, n], newer_prices.columns["close"][rows, k]
            if np.ptp(closes[0]) > 0 and not _deviates(*closes, _median_ratio(*closes)).any():
                names[symbols[n]] = symbols[k]
    return names


def _price_factor(stored_prices: _AlignedPrices, newer_prices: _AlignedPrices, n: int, stored_panel: Panel) -> float:
    """Factor on the stored prices of symbol n, 1 without corporate actions since.

    Raises DataError for prices that are no multiple of the stored ones. Without a common bar, daily prices must follow
    on the stored ones.
    """
    symbol = newer_prices.symbols[n]
    bars, newer_bars = (np.flatnonzero(prices.trades[:, n]) for prices in (stored_prices, newer_prices))
    if not (bars.size and newer_bars.size):
        return 1.0
    rows = np.intersect1d(bars, newer_bars)
    if not rows.size:
        wait = newer_prices.times[newer_bars[0]] - newer_prices.times[bars[-1]]
        move = newer_prices.columns["close"][newer_bars[0], n] / stored_prices.columns["close"][bars[-1], n] - 1
        if stored_panel.bar == "1d" and np.timedelta64(0, "D") < wait <= LATE and abs(move) <= JUMP:
            return 1.0
        first, last = (stamp(newer_prices.times[bar], stored_panel.bar) for bar in (newer_bars[0], bars[-1]))
        zone = "" if stored_panel.bar == "1d" else ", and check their time zone"
        raise DataError(
            f"the newer prices of {symbol} begin on {first} and share no bar with the stored ones, to {last}, so "
            f"splits since then are unknown: give prices that begin earlier{zone}"
        )
    closes = stored_prices.columns["close"][rows, n], newer_prices.columns["close"][rows, n]
    factor = _median_ratio(*closes)
    for column in [column for column in PRICES if column in stored_prices.columns]:
        stored_values, values = (prices.columns[column][rows, n] for prices in (stored_prices, newer_prices))
        for i in np.flatnonzero(_deviates(stored_values, values, factor))[:1]:
            day = stamp(newer_prices.times[rows[i]], stored_panel.bar)
            raise DataError(
                f"the newer prices of {stored_panel.name!r} contradict the stored ones: {column} of {symbol} on {day} "
                f"is {values[i]:g} instead of {stored_values[i]:g}, and other bars differ by a factor of {factor:.5g}; "
                "correct it, or fetch or import all prices with --replace"
            )
    return 1.0 if abs(factor - 1) <= np.median(_rounding_error(*closes)) else factor


def _unchecked_symbols(stored_prices: _AlignedPrices, newer_prices: _AlignedPrices) -> tuple[str, ...]:
    """Symbols that both have, on different bars."""
    bars = zip(stored_prices.symbols, stored_prices.trades.T, newer_prices.trades.T, strict=True)
    return tuple(
        symbol
        for symbol, stored_bars, newer_bars in bars
        if stored_bars.any() and newer_bars.any() and not (stored_bars & newer_bars).any()
    )


def _median_ratio(stored_values: Floats, newer_values: Floats) -> float:
    """Factor from stored to newer prices [T]."""
    return float(np.median(newer_values / stored_values))


def _deviates(stored_values: Floats, newer_values: Floats, factor: float) -> Bools:
    """Where newer prices [T] are not the stored ones times a factor, apart from rounding."""
    deviation = np.abs(newer_values / stored_values / factor - 1)
    return np.asarray(deviation > _rounding_error(stored_values, newer_values))


def _rounding_error(stored_values: Floats, newer_values: Floats) -> Floats:
    """Relative rounding error [T] of the ratio of two prices."""
    errors = [_half_unit(values) / values for values in (stored_values, newer_values)]
    return np.asarray(TOLERANCE + sum(errors))


def _half_unit(prices: Floats) -> float:
    """Half of the last decimal of rounded prices; 0 for others."""
    for decimals in range(MAX_DECIMALS + 1):
        if np.allclose(np.round(prices, decimals), prices, rtol=1e-9, atol=0):
            return 0.5 * 10.0**-decimals
    return 0.0


def _joint_columns(stored_prices: _AlignedPrices, newer_prices: _AlignedPrices, factors: Floats) -> dict[str, Floats]:
    """Columns of the stored prices times their factors [N], and of the newer ones on further bars.

    On common bars, symbols with a factor take the newer prices: they may be rounded. Dividends stay: a table of actions
    pays none on the first bar of a file.
    """
    columns = {}
    for column in dict.fromkeys([*stored_prices.columns, *(c for c in newer_prices.columns if c == "dividend")]):
        stored_values, values = (prices.column(column) for prices in (stored_prices, newer_prices))
        if column in RATIO_TOLERANCES:
            scale = _column_factors(stored_values, values, RATIO_TOLERANCES[column])
        else:
            scale = np.ones_like(factors) if column == "spread" else factors
        stays = stored_prices.trades & ((factors == 1.0) | (column == "dividend"))
        columns[column] = np.where(newer_prices.trades & ~stays, values, stored_values * scale)
    return columns


def _column_factors(stored_values: Floats, newer_values: Floats, tolerance: float) -> Floats:
    """Median ratio [N] of newer to stored values [T, N] where both are positive; 1 within a tolerance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where((stored_values > 0) & (newer_values > 0), newer_values / stored_values, np.nan)
    factors = pd.DataFrame(ratios).median().fillna(1.0).to_numpy(dtype=np.float64)
    return np.where(np.abs(factors - 1) <= tolerance, 1.0, factors)


def _benchmark(stored_panel: Panel, newer: Panel, times: Times) -> Benchmark | None:
    """The index of the stored panel, and of the newer prices on further bars."""
    if stored_panel.benchmark is None or newer.benchmark is None:
        return None
    indices = (
        pd.Series(stored_panel.benchmark.close, stored_panel.times),
        pd.Series(newer.benchmark.close, newer.times),
    )
    stored_values, newer_values = (np.asarray(index.reindex(times), dtype=np.float64) for index in indices)
    factor = _column_factors(stored_values[:, None], newer_values[:, None], TOLERANCE)[0]
    is_known = ~np.isnan(stored_values)
    return dataclasses.replace(stored_panel.benchmark, close=np.where(is_known, stored_values * factor, newer_values))


def _sectors(stored_panel: Panel, newer: Panel, joined_symbols: Sequence[str]) -> tuple[str, ...] | None:
    """Sectors of the stored symbols and of the symbols that join. Raises DataError for one without a sector."""
    if stored_panel.sectors is None:
        return None
    if joined_symbols and newer.sectors is None:
        raise DataError(
            f"the newer prices of {stored_panel.name!r} state no sector of {joined_symbols[0]}, and the stored ones "
            "do: add a column 'sector'"
        )
    return (*stored_panel.sectors, *((newer.sectors or ())[newer.symbols.index(symbol)] for symbol in joined_symbols))


def _flaws_of_sources(stored_panel: Panel, newer: Panel) -> tuple[str, ...]:
    """Flaws that the checks of a panel do not find again."""
    check_messages = {message for panel in (stored_panel, newer) for message in sentences(check(panel))}
    flaws = [*(flaw for flaw in stored_panel.flaws if not is_unfinished(flaw)), *newer.flaws]
    return tuple(dict.fromkeys(flaw for flaw in flaws if flaw not in check_messages))


def _members(stored_panel: Panel, panel: Panel) -> Bools | None:
    """Membership [T, N]: added bars have the one of the last stored bar, and symbols join on the first of them."""
    count = len(stored_panel.symbols)
    bars = len(stored_panel.times)
    members = np.ones_like(panel.tradable)
    if stored_panel.members is not None:
        members[:bars, :count] = stored_panel.members
        members[bars:, :count] = stored_panel.members[-1]
    members[:bars, count:] = False
    is_dated = stored_panel.members is not None or (panel.tradable & ~members).any()
    return members if is_dated else None


def _ended_symbols(stored_panel: Panel, newer: Panel, panel: Panel) -> tuple[str, ...]:
    """Symbols that traded in the last days of the stored panel, and do no more in the continued panel."""
    symbols = []
    for n, symbol in enumerate(stored_panel.symbols):
        bars, all_bars = (np.flatnonzero(prices.tradable[:, n]) for prices in (stored_panel, panel))
        if not bars.size or stored_panel.times[-1] - stored_panel.times[bars[-1]] > LATE:
            continue
        if symbol not in newer.symbols or panel.times[-1] - panel.times[all_bars[-1]] > LATE:
            symbols.append(symbol)
    return tuple(symbols)
