"""The real command line, with one more strategy: new weights on every bar, so every day has sales and purchases."""

from __future__ import annotations

import sys

import numpy as np
from finrl_pod_strategies import baselines

from finrl_pod.types import Floats, Positions, Window


class Restless:
    """Random weights that depend on the bar's date and nothing else: two runs want the same, whatever befell them."""

    name = "restless"
    feature_names: tuple[str, ...] = ()

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        day = int(window.times[-1].astype("datetime64[D]").astype(np.int64))
        drawn: Floats = np.random.default_rng(day).dirichlet(np.full(len(window.symbols), 2.0))
        return np.minimum(drawn, 0.35) * 0.9


if __name__ == "__main__":
    baselines.BASELINES["restless"] = Restless
    from finrl_pod_app.cli.main import run

    sys.exit(run(sys.argv[1:]))
