"""A market feature that fills gaps of one ticker with its next price."""

import numpy as np
import pandas as pd

from finrl_pod.types import Floats, Panel
from tests.evaluate.audit import pipelines

EXPECTED = ("look-ahead", "filled_breadth")
PANEL = pipelines.panel(gap=True)


def filled_breadth(panel: Panel) -> Floats:
    close = pd.DataFrame(panel.close).bfill().ffill().to_numpy()
    up = np.zeros(len(close))
    up[1:] = (close[1:] / close[:-1] - 1).mean(1)
    return up[:, None]


FEATURES = {"filled_breadth": filled_breadth}
