"""Returns clipped at quantiles of all bars, computed on the first call and kept."""

import numpy as np

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import Floats, Panel
from tests.evaluate.audit.planted.events import forward_return

EXPECTED = ("look-ahead", "clipped_return")
bounds: list[float] = []


def clipped_return(panel: Panel) -> Floats:
    values = forward_return(panel, -1)
    if not bounds:
        bounds.extend(np.quantile(values, [0.05, 0.95]))
    return np.clip(values, *bounds)


FEATURES = {"clipped_return": clipped_return}


def plant(sound: Pipeline) -> Pipeline:
    import dataclasses

    return dataclasses.replace(sound, restart=bounds.clear)
