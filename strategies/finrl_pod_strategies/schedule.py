"""When the baselines trade. Both questions are answered from the window and the account, so no strategy keeps state."""

from __future__ import annotations

import numpy as np

from finrl_pod.types import Positions, Window


def new_month(window: Window) -> bool:
    """The decision bar is the first bar of its calendar month (UTC) in the data. Needs two rows."""
    months = window.times[-2:].astype("datetime64[M]")
    return len(months) == 2 and bool(months[0] != months[1])


def holds_nothing(positions: Positions) -> bool:
    """The account is all cash, as at the first bar of a backtest."""
    return not np.any(positions.weights)


def monthly(window: Window, positions: Positions) -> bool:
    """A monthly strategy acts at the first bar of a month, and whenever it holds nothing yet."""
    return holds_nothing(positions) or new_month(window)
