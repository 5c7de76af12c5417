"""The built-in sample, and properties common to all sources."""

from __future__ import annotations

import math
import socket
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finrl_pod.data import built_in_panels as sample
from finrl_pod.data.built_in_panels import load_sample, load_us74, treasury_bill_rates
from finrl_pod.data.sources.factory import SOURCES, open_source
from finrl_pod.data.sources.frames import Retry
from finrl_pod.errors import DataError, SetupError
from finrl_pod.protocols import DataSource

FIXTURES = Path(__file__).parents[2] / "data" / "fixtures"


def test_the_sample_matches_its_description_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the sample must not touch the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    panel = load_sample()
    assert panel.close.shape == (8313, 20)
    assert (str(panel.times[0])[:10], str(panel.times[-1])[:10]) == ("1990-01-02", "2022-12-28")
    assert panel.symbols[:3] == ("AAPL", "AMD", "BAC")
    assert panel.columns == ("close",)
    assert panel.name == "sample"
    assert panel.adjusted
    assert panel.tradable.all()
    assert panel.benchmark is not None
    assert (panel.benchmark.name, panel.benchmark.price_only) == ("S&P 500", True)
    assert panel.benchmark.close[0] == 359.69


def test_prices_of_the_sample_are_read_exactly() -> None:
    """3 decimals for stocks and 2 for the index are parsed to the nearest doubles: hashes are equal on all machines."""
    panel = load_sample()
    np.testing.assert_array_equal(panel.close, np.rint(panel.close * 1000) / 1000)
    assert panel.benchmark is not None
    np.testing.assert_array_equal(panel.benchmark.close, np.rint(panel.benchmark.close * 100) / 100)


@pytest.mark.slow
def test_the_sample_equals_the_dataset_of_skfolio() -> None:
    from skfolio import datasets

    frame = datasets.load_sp500_dataset()
    panel = load_sample()
    assert panel.symbols == tuple(frame.columns)
    np.testing.assert_array_equal(panel.close, frame.to_numpy())
    np.testing.assert_array_equal(panel.times, frame.index.to_numpy(dtype="datetime64[ns]"))


def test_rates_of_treasury_bills_cover_the_built_in_panels_and_agree_with_one_month_rates() -> None:
    rates = dict(treasury_bill_rates())
    unknown_from = "2024-01-01"
    assert math.isnan(rates.pop(unknown_from))
    assert list(rates) == [f"{year}-01-01" for year in range(1990, 2024)]
    assert dict(load_sample().cash_rates[:-1]) == rates
    assert str(load_us74().times[-1]) < unknown_from
    package = find_spec("arch")
    assert package is not None
    assert package.origin is not None
    table = pd.read_csv(Path(package.origin).parent / "data/frenchdata/frenchdata.csv.gz", index_col="Date")
    months = table["RF"][table.index < 201800] / 100  # of Ibbotson, by K. French
    yearly = (1 + months).groupby(months.index // 100).prod() - 1
    differences = np.array([rates[f"{year}-01-01"] - yearly[year] for year in range(1990, 2018)])
    assert np.abs(differences).max() < 0.005  # a month and three months differ while rates move
    assert abs(differences.mean()) < 0.001


def test_the_samples_flaws_are_computed() -> None:
    panel = load_sample()
    text = " ".join(panel.flaws)
    moves = np.abs(panel.close[1:] / panel.close[:-1] - 1)
    assert f"has {(moves > 0.3).sum()} one-day moves above 30%" in text
    for phrase in ("hindsight", "Sharpe ratio of 0.98", "no open", "3 decimals", "without dividends"):
        assert phrase in text
    assert sum("in one bar on" in flaw for flaw in panel.flaws) == (moves > 0.4).sum() == 4


def test_missing_sample_raises_setup_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "SAMPLE_FOLDER", tmp_path)
    with pytest.raises(SetupError, match="install finrl-pod again"):
        load_sample()


def test_every_source_implements_the_protocol() -> None:
    for name in SOURCES:
        source = open_source(name)
        assert isinstance(source, DataSource)
        assert source.name == name
    with pytest.raises(DataError, match=r"one of yfinance, alpaca, or file\.py:Class, got 'bloomberg'"):
        open_source("bloomberg")


def test_retry_waits_grow_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waits.append)
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError):
        Retry(attempts=5, first_wait=1.0, longest_wait=3.0).call(fail, lambda e: isinstance(e, OSError))
    assert len(calls) == 5
    assert len(waits) == 4
    assert all(0 <= wait <= min(2.0**i, 3.0) for i, wait in enumerate(waits))
    calls.clear()
    with pytest.raises(TimeoutError):
        Retry(attempts=5).call(fail, lambda e: False)
    assert len(calls) == 1
