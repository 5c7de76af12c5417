"""Inverse volatility weights, once a month."""

import dataclasses

import numpy as np
from finrl_pod_strategies.user_strategy import UserStrategy

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import Floats, Positions, Window

EXPECTED = None


class Planted:
    lookback = 60

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        months = window.times[-2:].astype("datetime64[M]")
        if positions.weights.any() and months[0] == months[-1]:
            return None
        spread = np.nan_to_num(np.nanstd(np.diff(np.log(window.close), axis=0), axis=0), nan=1.0)
        calm: Floats = 1 / np.maximum(spread, 1e-3)
        return calm / calm.sum()


def plant(sound: Pipeline) -> Pipeline:
    return dataclasses.replace(sound, strategies={"planted": UserStrategy(Planted, "planted")}, make_env=None)
