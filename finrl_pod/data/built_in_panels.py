"""Built-in panels of daily US stock prices.

sample: closes of 20 large caps and of the S&P 500, 1990-01-02 to 2022-12-28. Two CSV files in `finrl_pod/data/sample`
from skfolio 1.12.2 (BSD-3-Clause).

us74: closes and quoted spreads of 74 stocks, 2000-01-04 to 2023-09-26. Two Parquet files in `finrl_pod/data/us74` from
the source distribution of cvxsimulator 1.5.1 (MIT), published with Boyd et al. (2024), "Markowitz Portfolio
Construction at Seventy". 221 holidays, on which every price stood still, were dropped.

Cash: rates of US Treasury bills by year, in `finrl_pod/data/treasury_bills.csv`.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from finrl_pod.data.panel import make_panel
from finrl_pod.errors import SetupError
from finrl_pod.prices import Benchmark, Floats, Panel

SAMPLE = "sample"
US74 = "us74"
SAMPLE_FOLDER = Path(__file__).parent / "sample"
US74_FOLDER = Path(__file__).parent / "us74"
TREASURY_BILLS = Path(__file__).with_name("treasury_bills.csv")
_SESSIONS_PER_YEAR = 252
_CLOSES_ONLY = "Closes only: there is no open, high, low or volume, so orders fill at the next close."


def load_sample() -> Panel:
    """Load the sample: closes, and the S&P 500 price index as benchmark. Raises SetupError if a file is damaged."""
    prices = _read_csv("sp500_dataset.csv.gz")
    index = _read_csv("sp500_index.csv.gz")
    closes = prices.to_numpy(dtype=np.float64)
    if not prices.index.equals(index.index):
        raise SetupError(f"the prices and the index in {SAMPLE_FOLDER} cover different days: install finrl-pod again")
    return make_panel(
        prices.index.to_numpy(),
        list(prices.columns),
        {"close": closes},
        name=SAMPLE,
        source="skfolio.datasets: load_sp500_dataset, load_sp500_index",
        benchmark=Benchmark("S&P 500", index.iloc[:, 0].to_numpy(dtype=np.float64), price_only=True),
        flaws=(
            "Survivorship: the tickers were picked with hindsight among companies that did well; equal weight, "
            f"rebalanced daily, before costs and interest, has a Sharpe ratio of {_equal_weight_sharpe(closes):.2f} on "
            "all of them.",
            _CLOSES_ONLY,
            "Prices are adjusted for splits and dividends and rounded to 3 decimals (the lowest is "
            f"{closes.min():.3f}), so whole shares and per-share costs mean little on them.",
            "The S&P 500 here is the price index, without dividends.",
            _large_moves("sample", closes, 0.30),
        ),
        cash_rates=treasury_bill_rates(),
    )


def load_us74() -> Panel:
    """Load us74: adjusted closes and spreads, without a benchmark. Raises SetupError if a file is damaged."""
    closes = _read_parquet("close")
    spreads = _read_parquet("spread")
    if not (closes.index.equals(spreads.index) and closes.columns.equals(spreads.columns)):
        raise SetupError(f"the closes and spreads in {US74_FOLDER} cover different bars: install finrl-pod again")
    close = closes.to_numpy(dtype=np.float64)
    spread = spreads.to_numpy(dtype=np.float64)
    return make_panel(
        closes.index.to_numpy(),
        list(closes.columns),
        {"close": close, "spread": spread},
        name=US74,
        source="cvxsimulator 1.5.1, published with Boyd et al. (2024)",
        flaws=(
            "Survivorship: all tickers trade on every session of 24 years; companies that failed or were bought are "
            "missing. Equal weight, rebalanced daily, before costs and interest, has a Sharpe ratio of "
            f"{_equal_weight_sharpe(close):.2f}.",
            "The tickers are anonymised (T0 to T100) and the vendor of the prices is not named.",
            _CLOSES_ONLY,
            "221 holidays, on which every price stood still, were dropped.",
            _large_moves("panel", close, 0.40),
            f"{int((spread > 0.02).sum()):,} of {spread.size:,} spreads exceed 2% of the price, up to "
            f"{spread.max():.0%}, and {int((spread == 0).sum()):,} are 0; they are kept.",
        ),
        cash_rates=treasury_bill_rates(),
    )


def treasury_bill_rates() -> tuple[tuple[str, float], ...]:
    """(First day, annual rate) of the years of the table of Treasury bills, and NaN from the end of the last on.

    A discount d of 91 days, stated for 360 days, is a yield of 365 d / (360 - 91 d). Raises SetupError if the file is
    damaged.
    """
    try:
        table = pd.read_csv(TREASURY_BILLS, comment="#")
        discounts = dict(zip(table["year"].tolist(), (table["rate"] / 100).tolist(), strict=True))
    except (OSError, ValueError, KeyError):
        raise SetupError(f"{TREASURY_BILLS} is missing or damaged: install finrl-pod again") from None
    rates = {f"{year}-01-01": 365 * d / (360 - 91 * d) for year, d in discounts.items()}
    return (*rates.items(), (f"{max(discounts) + 1}-01-01", float("nan")))


def _equal_weight_sharpe(closes: Floats) -> float:
    """Annual Sharpe ratio of equal weight in closes [T, N], rebalanced daily, before costs and interest."""
    returns = (closes[1:] / closes[:-1] - 1).mean(axis=1)
    return float(returns.mean() / returns.std(ddof=1) * np.sqrt(_SESSIONS_PER_YEAR))


def _large_moves(prices: str, closes: Floats, limit: float) -> str:
    count = int((np.abs(closes[1:] / closes[:-1] - 1) > limit).sum())
    return f"The whole {prices} has {count} one-day moves above {limit:.0%}; they are kept, and a few may be errors."


def _read_csv(file: str) -> pd.DataFrame:
    path = SAMPLE_FOLDER / file
    try:
        return pd.read_csv(path, index_col=0, parse_dates=True)
    except (OSError, EOFError, zlib.error, ValueError):
        raise SetupError(f"{path} is missing or damaged: install finrl-pod again") from None


def _read_parquet(name: str) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = US74_FOLDER / f"{name}.parquet"
    try:
        with path.open("rb") as file:
            # Without threads: see data/store.py.
            table = pq.ParquetFile(file, pre_buffer=False).read(use_threads=False)
        return table.to_pandas(use_threads=False)  # type: ignore[no-any-return]
    except (OSError, pa.ArrowException):
        raise SetupError(f"{path} is missing or damaged: install finrl-pod again") from None
