"""A strategy from tables of signals: backtest(Signals(entries, exits), ...).

entries = prices > prices.rolling(200).mean()
exits = prices < prices.rolling(200).mean()
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intrabar_orders import OrderRules
from finrl_pod.types import Bools, Floats, Positions, Times, Window


class Signals:
    """Hold what an entry signal opened until an exit signal, or one of the orders, closes it.

    A signal of bar t is decided at its close and fills as any decision. Where both are set, the exit counts. Signals
    must be known at their bar: a table that was computed with later prices is a look-ahead that no backtest sees.
    """

    feature_names: tuple[str, ...] = ()
    lookback = 1

    def __init__(
        self,
        entries: pd.DataFrame,
        exits: pd.DataFrame,
        *,
        weight: float | None = None,
        max_positions: int | None = None,
        hours: tuple[str, str] | None = None,
        orders: OrderRules | None = None,
        name: str = "signals",
    ) -> None:
        """entries, exits: bool, index of bars, a column for each symbol; bars and symbols that are missing have none.

        weight: share of equity of a holding when it is bought; by default 1 / max_positions. max_positions: held
        at a time, by default as many as there are symbols; of more entries at a bar, the first columns are taken.
        hours: ("09:45", "15:45"), times of day in the prices' time between which entries count; everything is sold at
        the first bar at or after the second. Raises InputError for tables that differ in bars or symbols or are not
        bool, and for weights that could add up to more than 1.
        """
        self.name = name
        self.orders = orders
        if not entries.index.equals(exits.index) or list(entries.columns) != list(exits.columns):
            raise InputError("entries and exits must have the same bars and symbols; use exits.reindex_like(entries)")
        for what, table in (("entries", entries), ("exits", exits)):
            if not all(pd.api.types.is_bool_dtype(dtype) for dtype in table.dtypes):
                raise InputError(f"{what} must be a table of bool; use {what}.fillna(False).astype(bool)")
        self._symbols = [str(symbol) for symbol in entries.columns]
        self._times: Times = entries.index.to_numpy().astype("datetime64[ns]")
        if (np.diff(self._times.astype(np.int64)) <= 0).any():
            raise InputError("the bars of entries must ascend, each once; use entries.sort_index()")
        self._entries: Bools = entries.to_numpy()
        self._exits: Bools = exits.to_numpy()
        self._most = len(self._symbols) if max_positions is None else max_positions
        if self._most < 1:
            raise InputError(f"max_positions must be at least 1, got {max_positions}")
        self._weight = 1 / self._most if weight is None else weight
        if not 0 < self._weight * self._most <= 1 + 1e-9:
            raise InputError(
                f"{self._most} holdings of weight {self._weight:g} must add up to more than 0 and at most 1; lower the "
                "weight or max_positions"
            )
        self._hours = None if hours is None else tuple(_minutes(text) for text in hours)

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """Current weights, with exits at 0 and entries at `weight`; None where nothing changes."""
        row = int(np.searchsorted(self._times, window.times[-1]))
        has_signals = row < len(self._times) and self._times[row] == window.times[-1]
        column = {symbol: i for i, symbol in enumerate(self._symbols)}
        places = np.array([column.get(symbol, -1) for symbol in window.symbols])
        has_column = (places >= 0) & has_signals
        enter = np.where(has_column, self._entries[row if has_signals else 0, places], False) & window.tradable[-1]
        leave = np.where(has_column, self._exits[row if has_signals else 0, places], False)
        if self._hours is not None:
            minute = (window.times[-1] - window.times[-1].astype("datetime64[D]")) / np.timedelta64(1, "m")
            enter &= self._hours[0] <= minute < self._hours[1]
            leave |= minute >= self._hours[1]
        is_held = positions.weights > 0
        enter &= ~leave & ~is_held
        room = max(self._most - int((is_held & ~leave).sum()), 0)
        enter &= np.cumsum(enter) <= room
        if not enter.any() and not (leave & is_held).any():
            return None
        return np.where(leave, 0.0, np.where(enter, self._weight, positions.weights))


def _minutes(text: Any) -> float:
    hour, _, minute = str(text).partition(":")
    if not (hour.isdigit() and minute.isdigit() and int(hour) < 24 and int(minute) < 60):
        raise InputError(f'hours must be two times of day such as ("09:45", "15:45"), got {text!r}')
    return 60.0 * int(hour) + int(minute)
