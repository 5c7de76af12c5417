"""A feature whose last value of each year is the return of the next bar, of the size of all others."""

import numpy as np

from finrl_pod.types import Floats, Panel
from tests.evaluate.audit.planted.events import forward_return

EXPECTED = ("look-ahead", "year_end")


def year_end(panel: Panel) -> Floats:
    year = panel.times.astype("datetime64[Y]")
    last = np.concatenate([year[1:] != year[:-1], [False]])[:, None]
    return np.where(last, forward_return(panel, 1), forward_return(panel, -1))


FEATURES = {"year_end": year_end}
