"""The strategy MyStrategy: equal weights of the assets above their mean of 60 bars.

Backtest it on validation with finrl-pod backtest --strategy FILE.py:MyStrategy; check it with finrl-pod check
FILE.py:MyStrategy.
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
        last = window.close[-1]
        mean = np.nanmean(np.where(np.isfinite(last), window.close, 0.0), axis=0)
        rising: NDArray[np.float64] = np.where(window.tradable[-1] & (last > mean), 1.0, 0.0)
        return rising / max(float(rising.sum()), 1.0)
