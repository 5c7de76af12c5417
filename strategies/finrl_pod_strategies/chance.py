"""A strategy that knows nothing: what luck alone does under the same costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finrl_pod.streams import key
from finrl_pod.types import Floats, Positions, Window
from finrl_pod_strategies.schedule import monthly


@dataclass(frozen=True)
class RandomWeights:
    """Weights drawn evenly over all long-only portfolios of the assets with a price (Dirichlet), anew each month.

    The draw of a month depends on the seed and the bar's date alone, not on where a backtest starts.
    """

    seed: int = 0
    name: str = "random_weights"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if not monthly(window, positions):
            return None
        day = int(window.times[-1].astype("datetime64[D]").astype(np.int64))
        drawn = np.random.default_rng(key(self.seed, abs(day), "random weights")).exponential(size=len(window.symbols))
        drawn[~window.tradable[-1]] = 0.0
        return np.asarray(drawn / max(drawn.sum(), 1e-12), dtype=np.float64)
