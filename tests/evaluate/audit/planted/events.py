"""Returns around one day a quarter; no plant itself."""

import numpy as np

from finrl_pod.types import Floats, Panel


def forward_return(panel: Panel, bars: int) -> Floats:
    """Return over the next `bars`, or the past ones if negative; 0 where there are none: [T, N]."""
    out = np.zeros_like(panel.close)
    if bars > 0:
        out[:-bars] = panel.close[bars:] / panel.close[:-bars] - 1
    else:
        out[-bars:] = panel.close[-bars:] / panel.close[:bars] - 1
    return np.nan_to_num(out)


def first_day_of_quarter(panel: Panel) -> Floats:
    """1 on the first bar of a quarter, as its date and the one before tell: [T, 1]."""
    quarter = panel.times.astype("datetime64[M]").astype(int) // 3
    return np.concatenate([[False], quarter[1:] != quarter[:-1]]).astype(float)[:, None]
