"""Weights that depend on the number of bars since the first one."""

import dataclasses

import numpy as np
from finrl_pod_strategies.user_strategy import UserStrategy

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import Floats, Positions, Window

EXPECTED = ("warm-up", "strategy planted")
STATUS = "warn"


class Planted:
    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if len(window.close) % 7:
            return None
        weights = np.ones(window.close.shape[1])
        weights[len(window.close) % len(weights)] = 4.0
        return weights / weights.sum()


def plant(sound: Pipeline) -> Pipeline:
    return dataclasses.replace(sound, strategies={"planted": UserStrategy(Planted, "planted")}, make_env=None)
