"""What market impact and limits on volume read: the volume of the bar that a decision fills in, and volatility."""

from __future__ import annotations

import numpy as np

from finrl_pod.data.price_features import over_own_bars
from finrl_pod.types import Bools, Floats, Panel

LOOKBACK = 21  # bars of returns
FEWEST = 5  # returns before the estimate is used
UNKNOWN = 0.02  # a bar; stands for the volatility until enough returns are known


def fill_volumes(panel: Panel, fillable: Bools, ended: Bools, fill: str) -> Floats | None:
    """[T, N] shares traded in the bar where the decision of t fills; 0 where it cannot, infinite where it is paid out.

    None where the panel has no volumes.
    """
    if panel.volume is None:
        return None
    volume = np.zeros_like(panel.volume)
    if fill == "same_close":
        volume[:] = panel.volume
    else:
        volume[:-1] = panel.volume[1:]
    volume = np.where(fillable, volume, 0.0)
    return np.where(ended & ~fillable, np.inf, volume)


def trailing_volatility(close: Floats, tradable: Bools) -> Floats:
    """[T, N] standard deviation (n - 1) of a ticker's last 21 log returns known at t; `UNKNOWN` before there are five.

    close: [T, N], > 0 where tradable [T, N]. Returns are those from one bar of the ticker to its next, so that neither
    the bars before its start nor gaps count as quiet ones; in a gap and after the end the last estimate stands.
    """
    import pandas as pd

    def rolling(own: Floats) -> Floats:
        returns = pd.DataFrame(np.diff(np.log(own), axis=0, prepend=np.nan))
        return returns.rolling(LOOKBACK, min_periods=FEWEST).std(ddof=1).to_numpy()

    estimates: Floats = (
        pd.DataFrame(over_own_bars(rolling, tradable, close)).ffill().fillna(UNKNOWN).to_numpy(copy=True)
    )
    return estimates
