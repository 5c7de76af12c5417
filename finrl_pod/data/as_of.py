"""The values of tables that each bar uses, as of the time at which they became known.

- The last one that was known before the time of the bar, and at most as old as the table allows; NaN if there is none.
  The time of a daily bar is 00:00 UTC on the date of its session: it uses values of earlier dates. Every exchange
  closes after that, so these are known at the decision. The time of a shorter bar is its start.
- A blank cell is no value; the one before it stays.
- With periods, a value of an earlier period never replaces one of a later period.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from finrl_pod.prices import FeatureTable, Floats, Panel, Times


def table_values(table: FeatureTable, column: int, panel: Panel) -> Floats:
    """Values of a column that bars use: [T, N], or [T, 1] for the whole market; NaN without one."""
    times = panel.times.astype("datetime64[ns]")
    table = table.rows(np.flatnonzero(np.isfinite(table.values[:, column])))
    if table.symbols is None:
        return _last_known(table, column, times)[:, None]
    rows_of_symbol = pd.DataFrame({"symbol": table.symbols}).groupby("symbol").indices
    result = np.full((len(times), len(panel.symbols)), np.nan)
    for n, symbol in enumerate(panel.symbols):
        if symbol in rows_of_symbol:
            result[:, n] = _last_known(table.rows(np.asarray(rows_of_symbol[symbol])), column, times)
    return result


def _last_known(rows: FeatureTable, column: int, times: Times) -> Floats:
    """Values [T] of the last row of one series before each time. times: [T]."""
    if rows.periods is not None:
        latest_periods = np.maximum.accumulate(rows.periods)
        rows = rows.rows(np.flatnonzero(rows.periods >= latest_periods))
    result = np.full(len(times), np.nan)
    if not len(rows.known_at):
        return result
    last = np.searchsorted(rows.known_at, times, side="left") - 1
    is_usable = last >= 0
    if rows.max_age is not None:
        is_usable &= times - rows.known_at[last] <= rows.max_age
    result[is_usable] = rows.values[last[is_usable], column]
    return result
