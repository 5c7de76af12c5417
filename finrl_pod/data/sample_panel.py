"""The built-in sample: real daily closes of 20 US large caps and of the S&P 500, 1990-01-02 to 2022-12-28.

Two CSV files in `finrl_pod/data/sample` from skfolio 1.12.2 (BSD-3-Clause).
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from finrl_pod.data.panel import between, make_panel, select
from finrl_pod.errors import DataError, SetupError
from finrl_pod.prices import Benchmark, Floats, Panel

SAMPLE = "sample"
FOLDER = Path(__file__).parent / "sample"
_SESSIONS_PER_YEAR = 252
_LARGE_MOVE = 0.30


class SampleSource:
    """The built-in sample as a `DataSource`; needs no network."""

    name = SAMPLE

    def fetch(self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str = "1d") -> Panel:
        """Bars of `symbols` (all 20 if empty) with start <= time <= end. Raises DataError unless bar is "1d"."""
        if bar != "1d":
            raise DataError(f"the sample has daily bars only (1d), got bar {bar!r}")
        return between(select(load_sample(), symbols), start, end)


def load_sample() -> Panel:
    """Load the sample: closes, and the S&P 500 price index as benchmark. Raises SetupError if a file is damaged."""
    prices, index = _read("sp500_dataset.csv.gz"), _read("sp500_index.csv.gz")
    closes = prices.to_numpy(dtype=np.float64)
    if not prices.index.equals(index.index):
        raise SetupError(f"the prices and the index in {FOLDER} cover different days: install finrl-pod again")
    return make_panel(
        prices.index.to_numpy(),
        list(prices.columns),
        {"close": closes},
        name=SAMPLE,
        source="skfolio.datasets: load_sp500_dataset, load_sp500_index",
        bar="1d",
        adjusted=True,
        benchmark=Benchmark("S&P 500", index.iloc[:, 0].to_numpy(dtype=np.float64), price_only=True),
        flaws=_flaws(closes),
    )


def _flaws(closes: Floats) -> tuple[str, ...]:
    """Known flaws of the sample; the figures are computed from closes [T, N]."""
    returns = closes[1:] / closes[:-1] - 1
    equal = returns.mean(axis=1)
    sharpe = equal.mean() / equal.std(ddof=1) * np.sqrt(_SESSIONS_PER_YEAR)
    large = int((np.abs(returns) > _LARGE_MOVE).sum())
    return (
        "Survivorship: the tickers were picked with hindsight among companies that did well; equal weight, rebalanced "
        f"daily and without costs, has a Sharpe ratio of {sharpe:.2f} on all of them.",
        "Closes only: there is no open, high, low or volume, so orders fill at the next close.",
        "Prices are adjusted for splits and dividends and rounded to 3 decimals (the lowest is "
        f"{closes.min():.3f}), so whole shares and per-share costs mean little on them.",
        "The S&P 500 here is the price index, without dividends.",
        f"The whole sample has {large} one-day moves above {_LARGE_MOVE:.0%}; they are kept, and a few may be errors.",
    )


def _read(file: str) -> pd.DataFrame:
    path = FOLDER / file
    try:
        return pd.read_csv(path, index_col=0, parse_dates=True)
    except (OSError, EOFError, zlib.error, ValueError):
        raise SetupError(f"{path} is missing or damaged: install finrl-pod again") from None
