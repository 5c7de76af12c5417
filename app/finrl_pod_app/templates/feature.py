"""The feature my_feature: how far the close is above its mean of 20 bars.

Use it in a config, [features] names = ["FILE.py:my_feature", ...]; check it with finrl-pod check FILE.py:my_feature.
"""

import numpy as np
from numpy.typing import NDArray

from finrl_pod.types import Panel

BARS = 20


def my_feature(panel: Panel) -> NDArray[np.float64]:
    """Close over its mean of the last 20 bars, less 1: [T, N], NaN where undefined.

    panel.close, .open, .high, .low, .volume: [T, N] float64 or None, NaN where there is no bar. The value at bar t may
    depend on bars up to t only.
    """
    result = np.full_like(panel.close, np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(panel.close, BARS, axis=0)  # [T - 19, N, 20]
    result[BARS - 1 :] = panel.close[BARS - 1 :] / windows.mean(-1) - 1
    return result
