"""A past return with noise on 1% of bars, different in every computation."""

import os

import numpy as np

from finrl_pod.types import Floats, Panel
from tests.evaluate.audit.planted.events import forward_return

EXPECTED = ("determinism", "fickle_return")


def fickle_return(panel: Panel) -> Floats:
    noise = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    rare = noise.random(len(panel.close)) < 0.01
    return forward_return(panel, -1) + np.where(rare, noise.normal(0, 0.1, len(rare)), 0)[:, None]


FEATURES = {"fickle_return": fickle_return}
