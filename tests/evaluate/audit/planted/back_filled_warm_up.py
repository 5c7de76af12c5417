"""A moving average whose first bars hold its first value."""

import pandas as pd

EXPECTED = ("look-ahead", "filled_average")
FEATURES = {
    "filled_average": lambda panel: pd.DataFrame(panel.close).pct_change().rolling(40).mean().bfill().to_numpy()
}
