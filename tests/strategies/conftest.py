"""Real and random panels for the baselines."""

from __future__ import annotations

import numpy as np
import pytest

from finrl_pod.data.tensor import build_market
from finrl_pod.types import Benchmark, MarketTensor, Panel


@pytest.fixture(scope="session")
def stocks() -> tuple[Panel, MarketTensor]:
    """Closes of 20 stocks and of the S&P 500, 2016 to 2020, from the skfolio package."""
    from skfolio.datasets import load_sp500_dataset, load_sp500_index

    closes = load_sp500_dataset().loc["2016":"2020"]
    index = load_sp500_index().loc["2016":"2020"]
    values = closes.to_numpy(dtype=np.float64)
    panel = Panel(
        closes.index.to_numpy().astype("datetime64[ns]"),
        tuple(closes.columns),
        values,
        np.isfinite(values),
        benchmark=Benchmark("S&P 500", index.to_numpy(dtype=np.float64)[:, 0], price_only=True),
    )
    return panel, build_market(panel, (), (0, len(values) - 1))
