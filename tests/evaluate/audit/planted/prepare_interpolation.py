"""Preparation that interpolates a gap of sixty bars."""

import dataclasses

import numpy as np
import pandas as pd

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import Panel
from tests.evaluate.audit import pipelines
from tests.evaluate.audit.planted.prepare_back_fill import with_gap

EXPECTED = ("look-ahead", "the preparation of close")
PANEL = with_gap(pipelines.panel(), 300, 60)


def interpolated(panel: Panel) -> Panel:
    close = pd.DataFrame(panel.close).interpolate(limit_area="inside").to_numpy()
    return dataclasses.replace(panel, close=close, tradable=np.isfinite(close))


def plant(sound: Pipeline) -> Pipeline:
    return dataclasses.replace(sound, prepare=interpolated)
