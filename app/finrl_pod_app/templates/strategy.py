"""The strategy MyStrategy: equal weights of the assets above their mean of 60 bars.

Check it with finrl-pod check FILE.py:MyStrategy; backtest it on validation with finrl-pod backtest --strategy
FILE.py:MyStrategy --data NAME, where NAME is a stored panel; without --data, on the built-in sample.
"""

import numpy as np
from numpy.typing import NDArray

from finrl_pod.types import Positions, Window


class MyStrategy:
    """Holds what trends upwards, in equal weights."""

    lookback = 60  # trailing bars of the window that target_weights gets; leave it out for all

    def target_weights(self, window: Window, positions: Positions) -> NDArray[np.float64] | None:  # noqa: ARG002
        """Target weights [N] as fractions of equity, the rest is cash; None leaves the positions unchanged.

        window.close: [bars, N] up to the decision bar, NaN where not tradable. positions.weights: [N], positions.cash,
        positions.equity: the account now. Weights are at least 0 and add up to 1 at most.
        """
        weights = np.zeros(window.close.shape[1])
        trades = window.tradable[-1]  # [N]: the others have no close on this bar, and keep weight 0
        close = window.close[:, trades]
        weights[trades] = close[-1] > np.nanmean(close, axis=0)  # the mean skips bars before the listing of an asset
        return weights / max(float(weights.sum()), 1.0)
