"""The real command line with test strategies that buy and sell on every bar."""

from __future__ import annotations

import sys

import numpy as np
from finrl_pod_strategies import baselines

from finrl_pod.types import Floats, Positions, Window


class RandomWeights:
    """Random weights that depend only on the bar's date, so repeated runs decide the same."""

    name = "random_daily"
    feature_names: tuple[str, ...] = ()

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        day = int(window.times[-1].astype("datetime64[D]").astype(np.int64))
        drawn: Floats = np.random.default_rng(day).dirichlet(np.full(len(window.symbols), 2.0))
        return np.minimum(drawn, 0.35) * 0.9


class SwappingStrategy:
    """Weights of 0.3 and 0.6 for two symbols, swapped on every weekday."""

    name = "swapping"
    feature_names: tuple[str, ...] = ()

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        odd = int(np.busday_count("2019-01-01", window.times[-1].astype("datetime64[D]"))) % 2
        return np.array([0.3, 0.6] if odd else [0.6, 0.3])


def add_strategies() -> None:
    """Register the strategies so that a config can name them."""
    baselines.BASELINES |= {"random_daily": RandomWeights(), "swapping": SwappingStrategy()}


if __name__ == "__main__":
    add_strategies()
    from finrl_pod_app.cli.main import run

    sys.exit(run(sys.argv[1:]))
