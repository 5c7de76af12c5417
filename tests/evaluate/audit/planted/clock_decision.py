"""Weights that depend on the clock of the machine."""

import dataclasses
import time

import numpy as np
from finrl_pod_strategies.user_strategy import UserStrategy

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import Floats, Positions, Window

EXPECTED = ("determinism", "strategy planted")


class Planted:
    lookback = 5

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        weights = np.ones(window.close.shape[1])
        weights[time.perf_counter_ns() // 1000 % len(weights)] = 2.0
        return weights / weights.sum()


def plant(sound: Pipeline) -> Pipeline:
    return dataclasses.replace(sound, strategies={"planted": UserStrategy(Planted, "planted")}, make_env=None)
