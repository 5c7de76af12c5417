"""The real command line, with strategies that trade on every bar, so every day has sales and purchases."""

from __future__ import annotations

import sys

import numpy as np
from finrl_pod_strategies import baselines

from finrl_pod.types import Floats, Positions, Window


class RandomWeights:
    """Random weights that depend on the bar's date and nothing else: two runs want the same, whatever befell them."""

    name = "restless"
    feature_names: tuple[str, ...] = ()

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        day = int(window.times[-1].astype("datetime64[D]").astype(np.int64))
        drawn: Floats = np.random.default_rng(day).dirichlet(np.full(len(window.symbols), 2.0))
        return np.minimum(drawn, 0.35) * 0.9


class SwappingStrategy:
    """Two symbols, a third and two thirds of nine tenths, the other way round on the next weekday."""

    name = "swapping"
    feature_names: tuple[str, ...] = ()

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        odd = int(np.busday_count("2019-01-01", window.times[-1].astype("datetime64[D]"))) % 2
        return np.array([0.3, 0.6] if odd else [0.6, 0.3])


def add_strategies() -> None:
    """So that a config can name them."""
    baselines.BASELINES |= {"restless": RandomWeights, "swapping": SwappingStrategy}


if __name__ == "__main__":
    add_strategies()
    from finrl_pod_app.cli.main import run

    sys.exit(run(sys.argv[1:]))
