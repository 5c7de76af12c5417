"""Where a ticker's feature stands among all tickers of the same bar."""

from __future__ import annotations

import numpy as np
import pandas as pd

from finrl_pod.types import Floats

# A spread below this share of the largest value is rounding, not information.
_RELATIVE_SPREAD = 1e-12


def zscore(values: Floats) -> Floats:
    """(x - mean) / standard deviation (n) over the defined values of each bar: [T, N] -> [T, N], NaN stays NaN.

    0 where a bar has a single defined value or no spread.
    """
    defined = np.isfinite(values)
    filled = np.where(defined, values, 0.0)
    count = np.maximum(defined.sum(1, keepdims=True), 1)
    centred = np.where(defined, values - filled.sum(1, keepdims=True) / count, 0.0)
    std: Floats = np.sqrt((centred**2).sum(1, keepdims=True) / count)
    spread = std > _RELATIVE_SPREAD * np.abs(filled).max(1, keepdims=True, initial=0.0)
    result: Floats = np.divide(centred, std, out=np.zeros_like(centred), where=spread)
    result[~defined] = np.nan
    return result


def rank(values: Floats) -> Floats:
    """Rank among the defined values of each bar, scaled from -1 (lowest) to 1 (highest): [T, N], NaN stays NaN.

    Ties share their average rank; a single defined value is 0.
    """
    ranks = pd.DataFrame(values).rank(axis=1, method="average").to_numpy()
    count = np.isfinite(values).sum(1, keepdims=True)
    result: Floats = (2 * ranks - count - 1) / np.maximum(count - 1, 1)
    return result
