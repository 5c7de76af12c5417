"""A smoothed price that reaches five bars into the future."""

import pandas as pd

EXPECTED = ("look-ahead", "centred_mean")
FEATURES = {
    "centred_mean": lambda panel: panel.close / pd.DataFrame(panel.close).rolling(11, center=True).mean().to_numpy() - 1
}
