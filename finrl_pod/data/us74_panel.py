"""The built-in market us74: closes and quoted spreads of 74 US stocks, 2000-01-04 to 2023-09-26.

Two Parquet files in `finrl_pod/data/us74` from the source distribution of cvxsimulator 1.5.1 (MIT), published with
Boyd et al. (2024), "Markowitz Portfolio Construction at Seventy". 221 holidays, on which every price stood still, were
dropped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from finrl_pod.data.panel import make_panel
from finrl_pod.errors import SetupError
from finrl_pod.prices import Floats, Panel

US74 = "us74"
FOLDER = Path(__file__).parent / "us74"
_SESSIONS_PER_YEAR = 252
_LARGE_MOVE = 0.40


def load_us74() -> Panel:
    """Load the panel: adjusted closes and spreads, without a benchmark. Raises SetupError if a file is damaged."""
    closes, spreads = _read("close"), _read("spread")
    if not (closes.index.equals(spreads.index) and closes.columns.equals(spreads.columns)):
        raise SetupError(f"the closes and spreads in {FOLDER} cover different bars: install finrl-pod again")
    close, spread = closes.to_numpy(dtype=np.float64), spreads.to_numpy(dtype=np.float64)
    return make_panel(
        closes.index.to_numpy(),
        list(closes.columns),
        {"close": close, "spread": spread},
        name=US74,
        source="cvxsimulator 1.5.1, published with Boyd et al. (2024)",
        bar="1d",
        adjusted=True,
        flaws=_flaws(close, spread),
    )


def _flaws(close: Floats, spread: Floats) -> tuple[str, ...]:
    """Known flaws; the figures are computed from closes and spreads [T, N]."""
    returns = close[1:] / close[:-1] - 1
    equal = returns.mean(axis=1)
    sharpe = equal.mean() / equal.std(ddof=1) * np.sqrt(_SESSIONS_PER_YEAR)
    large = int((np.abs(returns) > _LARGE_MOVE).sum())
    wide = int((spread > 0.02).sum())
    return (
        "Survivorship: all tickers trade on every session of 24 years; companies that failed or were bought are "
        f"missing. Equal weight, rebalanced daily and without costs, has a Sharpe ratio of {sharpe:.2f}.",
        "The tickers are anonymised (T0 to T100) and the vendor of the prices is not named.",
        "Closes only: there is no open, high, low or volume, so orders fill at the next close.",
        "221 holidays, on which every price stood still, were dropped.",
        f"The whole panel has {large} one-day moves above {_LARGE_MOVE:.0%}; they are kept, and a few may be errors.",
        f"{wide:,} of {spread.size:,} spreads exceed 2% of the price, up to {spread.max():.0%}, and "
        f"{int((spread == 0).sum()):,} are 0; they are kept.",
    )


def _read(name: str) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = FOLDER / f"{name}.parquet"
    try:
        with path.open("rb") as file:
            # Without threads: see data/store.py.
            table: pd.DataFrame = (
                pq.ParquetFile(file, pre_buffer=False).read(use_threads=False).to_pandas(use_threads=False)
            )
    except (OSError, pa.ArrowException):
        raise SetupError(f"{path} is missing or damaged: install finrl-pod again") from None
    return table
