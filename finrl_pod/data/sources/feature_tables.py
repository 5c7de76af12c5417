"""Tables of the user as features: fundamentals, sentiment or macroeconomic values, by the time they became known.

A table is a CSV file with a column `known_at`, perhaps `symbol` (without it the values are of the whole market) and
`period` (the end of the period that a value describes), and columns of numbers. The column `level` of macro.csv is the
feature `macro.level`.

`finrl_pod.data.as_of` says which value a bar uses. Of the times in `known_at`:

- On daily bars the date in UTC counts. A date without a time is known at the end of the day.
- Bars within the day need times with a zone, and a date without a time is known once it is over everywhere: at 12:00
  UTC of the next day.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finrl_pod.data.sources.cells import parse_numbers
from finrl_pod.data.sources.tables import INDEX_NAME, Origin, read_csv
from finrl_pod.errors import ConfigError, DataError, listed
from finrl_pod.prices import FeatureTable, Floats, Panel, Times
from finrl_pod.protocols import Strategy
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import TableConfig
from finrl_pod.user_files import source_text, unpinned, written_path

Symbols = NDArray[np.object_]

MAX_BYTES = 50_000_000
SYMBOL = "symbol"
KNOWN_AT = "known_at"
PERIOD = "period"
DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:$|[T ]\d{2}:\d{2})")
DATE_LENGTH = len("2020-01-31")
ZONE = re.compile(r":\d{2}.*(?:Z|[+-]\d{2}(?::?\d{2})?)$")
END_OF_DAY = np.timedelta64(86_400 * 10**9 - 1, "ns")
OVER_EVERYWHERE = np.timedelta64(36, "h")  # from the start of a day in UTC to its end in the last zone


def with_tables(panel: Panel, configs: Sequence[TableConfig]) -> Panel:
    """The panel with tables for its bars and symbols; without those that it has.

    Raises DataError naming the line for an invalid file, InputError for a missing one, ConfigError for two tables of
    one name and for settings out of range.
    """
    if not configs and not panel.tables:
        return panel  # the same object, which keeps its hash
    tables: dict[str, FeatureTable] = {}
    for i, config in enumerate(configs):
        check_settings(f"features.tables.{i}.", config)
        table = _read_table(config, panel)
        if table.name in tables:
            raise ConfigError(
                f"two of features.tables are named {table.name}, and so are their features; rename a file"
            )
        tables[table.name] = table
    earlier_flaws = {flaw for table in panel.tables for flaw in table.flaws}
    flaws = [flaw for flaw in panel.flaws if flaw not in earlier_flaws]
    flaws += [flaw for table in tables.values() for flaw in table.flaws]
    return dataclasses.replace(panel, tables=tuple(tables.values()), flaws=tuple(flaws))


def with_newest_tables(panel: Panel, strategy: Strategy) -> Panel:
    """The panel with the tables of a trained strategy as their files are now; the same panel if it was trained on none.

    A table whose file is missing has the values that the run of the strategy keeps. Raises as `with_tables`.
    """
    configs = tables_of(strategy)
    return with_tables(panel, [_newest(config) for config in configs]) if configs else panel


def missing_tables(strategy: Strategy) -> str:
    """A warning that names the tables of a trained strategy whose files are missing; empty without any."""
    files = [unpinned(config.file) for config in tables_of(strategy) if _newest(config) is config]
    if not files:
        return ""
    return f"there is no {listed(files)}: decisions use the values that were known when the strategy was trained"


def tables_of(strategy: Strategy) -> Sequence[TableConfig]:
    """The tables of a trained strategy; none of another one."""
    return getattr(strategy, "feature_tables", ())


def is_column(name: str, configs: Sequence[TableConfig]) -> bool:
    """True if a feature has the name of a column of one of the tables."""
    return any(name.startswith(f"{written_path(Path(config.file)).stem}.") for config in configs)


def _newest(config: TableConfig) -> TableConfig:
    """The table as its file is now, or the same one if there is no file."""
    file = unpinned(config.file)
    return dataclasses.replace(config, file=file) if Path(file).is_file() else config


# ---------------------------------------------------------------------- reading


def _read_table(config: TableConfig, panel: Panel) -> FeatureTable:
    """The table of a file, with its rows in order of time."""
    path = written_path(Path(config.file))
    contents = source_text(Path(config.file), "a table of features").encode()
    if len(contents) > MAX_BYTES:
        raise DataError(
            f"{path.name} has more than {MAX_BYTES // 1_000_000} MB; keep the columns and rows that are used"
        )
    cells, origin = read_csv(contents, path.name)
    cells = cells.fillna("").rename(columns=str.strip).drop(columns=INDEX_NAME, errors="ignore")
    columns = tuple(name for name in cells.columns if name not in (SYMBOL, KNOWN_AT, PERIOD))
    _check_columns(cells, columns, path)
    texts = cells[KNOWN_AT].str.strip()
    moments = _moments(texts, origin, panel.bar)
    order = np.argsort(moments, kind="stable")
    symbols = _symbols(cells[SYMBOL], origin) if SYMBOL in cells else None
    _check_repeats(moments, symbols, origin)
    values = np.column_stack([_numbers(cells[name], name, origin) for name in columns])
    periods = _parse(cells[PERIOD].str.strip(), PERIOD, origin) if PERIOD in cells else None
    flaws = [*_early_values(path.name, texts, moments, periods, cells), *_symbol_flaws(path.name, symbols, panel)]
    days = config.max_age_days
    return FeatureTable(
        name=path.stem,
        sha256=hashlib.sha256(contents).hexdigest(),
        columns=columns,
        known_at=(moments.astype("datetime64[D]") if panel.bar == "1d" else moments)[order].astype("datetime64[ns]"),
        values=values[order],
        symbols=None if symbols is None else symbols[order],
        periods=None if periods is None else periods[order],
        max_age=np.timedelta64(round(days * 86_400e9), "ns") if days else None,
        flaws=tuple(flaws),
    )


def _check_columns(cells: pd.DataFrame, columns: Sequence[str], path: Path) -> None:
    """Raises DataError for missing columns, no rows, and names that no feature can have."""
    if KNOWN_AT not in cells or not columns:
        missing = f"the column {KNOWN_AT!r}" if KNOWN_AT not in cells else "a column of values"
        raise DataError(
            f"{path.name} lacks {missing}: a table of features has known_at, perhaps symbol and period, and values; "
            f"it has {listed(list(cells.columns))}"
        )
    if cells.empty:
        raise DataError(f"{path.name} has no rows; a table of features needs at least one")
    for name in (path.stem, *columns):
        if ":" in name:
            raise DataError(f"{path.name}: {name!r:.80} names features and must have no colon; rename it")


def _symbols(cells: pd.Series[str], origin: Origin) -> Symbols:
    """[R] symbols. Raises DataError for a blank one."""
    symbols = cells.str.strip().to_numpy(dtype=object)
    if (nameless := np.flatnonzero(symbols == "")).size:
        raise DataError(
            f"{origin.where(int(nameless[0]))}: the symbol is missing; values of the whole market need a table without "
            "this column"
        )
    return symbols


def _moments(texts: pd.Series[str], origin: Origin, bar: str) -> Times:
    """[R] when each row was known, in UTC; a date without a time is known at its end.

    Raises DataError for what is no date, and on bars within the day for a time without a zone.
    """
    moments = _parse(texts, KNOWN_AT, origin)
    is_date = (texts.str.len() == DATE_LENGTH).to_numpy()
    if bar == "1d":
        moments[is_date] += END_OF_DAY
        return moments
    moments[is_date] += OVER_EVERYWHERE
    if (zoneless := np.flatnonzero(~is_date & ~texts.str.contains(ZONE).to_numpy())).size:
        row = int(zoneless[0])
        raise DataError(
            f"{origin.where(row)}: {KNOWN_AT} needs a zone for bars of {bar}, Z for UTC or an offset such as -05:00; "
            f"got {texts.iloc[row]!r:.80}"
        )
    return moments


def _parse(texts: pd.Series[str], column: str, origin: Origin) -> Times:
    """[R] in UTC; the start of the day for a date. Raises DataError for what is no date."""
    times = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)
    if (wrong := np.flatnonzero(times.isna() | ~texts.str.match(DATE))).size:
        row = int(wrong[0])
        raise DataError(
            f"{origin.where(row)}: {column} must be a date such as 2020-01-31 or a time such as 2020-01-31T15:30Z, got "
            f"{texts.iloc[row]!r:.80}"
        )
    return times.to_numpy(dtype="datetime64[ns]").copy()


def _numbers(cells: pd.Series[str], name: str, origin: Origin) -> Floats:
    """[R] float64, NaN if blank. Raises DataError for words and for infinite numbers."""
    numbers: Floats = parse_numbers(cells, name, origin.where).to_numpy()
    if (infinite := np.flatnonzero(np.isinf(numbers))).size:
        row = int(infinite[0])
        raise DataError(f"{origin.where(row)}: {name:.80} must be finite, got {cells.iloc[row]!r:.80}; leave it blank")
    return numbers


def _check_repeats(moments: Times, symbols: Symbols | None, origin: Origin) -> None:
    """Raises DataError for two rows that were known at one time, of one symbol."""
    keys = pd.DataFrame({KNOWN_AT: moments, SYMBOL: "" if symbols is None else symbols})
    if (repeats := np.flatnonzero(keys.duplicated())).size:
        row = int(repeats[0])
        first = int(np.flatnonzero((keys == keys.iloc[row]).all(axis=1))[0])
        symbol = "" if symbols is None else f" of {symbols[row]:.80}"
        raise DataError(
            f"{origin.where(row)}: {KNOWN_AT}{symbol} is the same as in {origin.word} {first + origin.offset}; remove "
            "one, or write the times of both"
        )


def _early_values(
    file: str, texts: pd.Series[str], moments: Times, periods: Times | None, cells: pd.DataFrame
) -> list[str]:
    """A flaw if some values were known before their period ended."""
    early = np.flatnonzero(moments < periods) if periods is not None else np.array([])
    if not early.size:
        return []
    row = int(early[0])
    return [
        f"{file}: {early.size:,} of {len(texts):,} rows are known before their period ends, such as "
        f"{cells[PERIOD].iloc[row].strip():.80} at {texts.iloc[row]:.80}: if they are no forecasts, they look ahead."
    ]


def _symbol_flaws(file: str, symbols: Symbols | None, panel: Panel) -> list[str]:
    """A flaw each for symbols without prices and without values. Raises DataError if no symbol has both."""
    if symbols is None:
        return []
    symbols_of_table = set(symbols)
    unknown = sorted(symbols_of_table - set(panel.symbols))
    without_values = [symbol for symbol in panel.symbols if symbol not in symbols_of_table]
    if len(without_values) == len(panel.symbols):
        raise DataError(
            f"{file} has no symbol of the prices {panel.name!r}: it has {listed(unknown)}, they have "
            f"{listed(panel.symbols)}; write the same symbols"
        )
    flaws = []
    if unknown:
        flaws.append(f"{file}: values of {listed(unknown)} are not used, as the prices lack these symbols.")
    if without_values:
        flaws.append(f"{file}: there are no values of {listed(without_values)}.")
    return flaws
