"""A strategy that opens a file of prices at every decision."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
from finrl_pod_strategies.user_strategy import UserStrategy

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import Floats, Positions, Window

EXPECTED = ("external data", "answers.csv")
STATUS = "warn"


class Planted:
    lookback = 1

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "answers.csv"
            file.write_text("date,close\n2020-01-02,1\n")
            file.read_text()
        return np.ones(window.close.shape[1]) / window.close.shape[1]


def plant(sound: Pipeline) -> Pipeline:
    return dataclasses.replace(sound, strategies={"planted": UserStrategy(Planted, "planted")}, make_env=None)
