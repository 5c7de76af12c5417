"""Preparation that drops the ticker with the worst return over all bars."""

import dataclasses

import numpy as np

from finrl_pod.data.panel import select
from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import Panel

EXPECTED = ("look-ahead", "drops")


def survivors(panel: Panel) -> Panel:
    worst = int((panel.close[-1] / panel.close[0]).argmin())
    return select(panel, list(np.delete(np.array(panel.symbols), worst)))


def plant(sound: Pipeline) -> Pipeline:
    return dataclasses.replace(sound, prepare=survivors)
