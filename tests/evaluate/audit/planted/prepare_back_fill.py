"""Preparation that fills a gap of five bars with the price after it."""

import dataclasses

import numpy as np
import pandas as pd

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import Panel
from tests.evaluate.audit import pipelines

EXPECTED = ("look-ahead", "the preparation of close")


def with_gap(full: Panel, first: int, bars: int) -> Panel:
    """The panel without some bars of one ticker."""
    close, tradable = full.close.copy(), full.tradable.copy()
    close[first : first + bars, 1], tradable[first : first + bars, 1] = np.nan, False
    return dataclasses.replace(full, close=close, tradable=tradable)


PANEL = with_gap(pipelines.panel(), 703, 5)


def filled(panel: Panel) -> Panel:
    close = pd.DataFrame(panel.close).bfill().to_numpy()
    return dataclasses.replace(panel, close=close, tradable=np.isfinite(close))


def plant(sound: Pipeline) -> Pipeline:
    return dataclasses.replace(sound, prepare=filled)
