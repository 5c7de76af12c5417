"""Queries and figures of the data page, and the import of files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.dashboard.figures import prices as figures
from finrl_pod_app.dashboard.queries import prices

from finrl_pod.data.panel import make_panel
from finrl_pod.data.sources.read_options import ReadOptions
from finrl_pod.data.store import Store
from finrl_pod.errors import DataError
from finrl_pod.types import Panel

LONG = b"time,symbol,close\n2020-01-02,A,10\n2020-01-03,A,11\n2020-01-02,B,5\n2020-01-03,B,5.5\n"


@pytest.fixture
def panel() -> Panel:
    """A starts late, B doubles over a gap of two bars, C is complete and halves once."""
    close = np.array(
        [[np.nan, 10, 8], [np.nan, 11, 8], [1, np.nan, 4], [1.5, np.nan, 4], [1.5, 22, 4.2], [1.6, 21, 4.1]]
    )
    times = np.arange("2020-01-01", "2020-01-07", dtype="datetime64[D]")
    return make_panel(times, ("A", "B", "C"), {"close": close}, name="main", allow_gaps=True)


def test_missing_bars_between_first_and_last(panel: Panel) -> None:
    table = prices.missing_bars(panel).set_index("symbol")
    assert table["missing"].tolist() == [0, 2, 0]
    assert table["bars"].tolist() == [4, 4, 6]
    assert table.loc["B", "share"] == pytest.approx(2 / 6)
    assert str(table.loc["A", "first"])[:10] == "2020-01-03"


def test_figures_of_prices() -> None:
    close = np.exp(np.random.default_rng(1).normal(0, 0.01, (90, 2)).cumsum(0))
    columns = {"open": close, "high": 1.01 * close, "low": 0.99 * close, "close": close}
    panel = make_panel(np.datetime64("2020-01-01") + np.arange(90), ("A", "B"), columns)
    candles = figures.candles(panel, "B", 30).data[0]
    np.testing.assert_allclose(candles.close, close[-30:, 1])


def test_correlations_match_numpy(panel: Panel) -> None:
    rng = np.random.default_rng(1)
    close = np.exp(rng.normal(0, 0.01, (200, 3)).cumsum(0))
    whole = make_panel(np.arange(200).astype("datetime64[D]"), ("A", "B", "C"), {"close": close})
    expected = np.corrcoef(np.diff(np.log(close), axis=0), rowvar=False)
    np.testing.assert_allclose(prices.correlations(whole, ["A", "B", "C"]).to_numpy(), expected, rtol=1e-10)
    order = prices.correlations(whole, ["C", "A"])
    assert order.loc["C", "A"] == pytest.approx(expected[0, 2])


def test_growth_starts_at_one_per_ticker(panel: Panel) -> None:
    frame = prices.growth(panel, ["A", "B"])
    assert frame["A"].tolist()[2:] == [1.0, 1.5, 1.5, 1.6]
    assert np.isnan(frame["A"].iloc[0])
    assert frame["B"].iloc[0] == 1.0


def test_figures_escape_tickers(panel: Panel) -> None:
    odd = dataclasses.replace(panel, symbols=("<i>A</i>", "B", "C"))
    assert figures.growth(prices.growth(odd, ["<i>A</i>", "B"])).data[0].name == "&lt;i&gt;A&lt;/i&gt;"
    assert figures.correlations(prices.correlations(odd, list(odd.symbols))).data[0].x[0] == "&lt;i&gt;A&lt;/i&gt;"
    share = figures.available_bars(odd).data[0]
    assert share.y[0] == "&lt;i&gt;A&lt;/i&gt;"
    np.testing.assert_array_equal(np.asarray(share.z), panel.tradable.T)


@pytest.mark.slow
def test_upload_is_checked_and_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path))
    panel = prices.read_upload("My prices.csv", LONG, ReadOptions(adjusted=False))
    assert panel.source == "file My prices.csv"
    assert list(prices.preview(panel).columns) == ["time", "A", "B"]
    assert prices.preview(panel)["B"].tolist() == [5.5, 5.0]
    manifest = prices.store_upload(panel, "mine", False)
    assert Store(tmp_path).load("mine").sha256 == manifest.sha256
    assert manifest.query == {"file": "My prices.csv", "bar": "1d", "allow_gaps": False}
    with pytest.raises(DataError, match="panel 'mine' already exists"):
        prices.store_upload(panel, "mine", False)
    for name in ("../mine", "sample", "", "a/b"):
        with pytest.raises(DataError):
            prices.store_upload(panel, name, False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.csv", LONG.replace(b"11", b"eleven"), r"^bad\.csv, line 3: close must be a number .*'eleven'"),
        ("bad.csv", LONG.replace(b"2020-01-03,A", b"yesterday,A"), r"^bad\.csv, line 3: the time must be a date"),
        ("bad.csv", b"", r"^bad\.csv is empty"),
        ("bad.csv", b"\xff\xfe\x00", r"^bad\.csv is not UTF-8"),
        ("bad.parquet", b"PAR1nonsense", "cannot read bad.parquet: it is truncated or not a Parquet file"),
        ("bad.xlsx", LONG, r"^bad\.xlsx must end in \.csv"),
        ("../../etc/passwd", LONG, r"^passwd must end in"),
        ("..\\up\\bad.csv", LONG.replace(b"11", b"-11"), r"^bad\.csv, line 3"),
    ],
)
def test_upload_errors_name_file_and_line(name: str, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        prices.read_upload(name, content)
    assert "/tmp" not in str(caught.value)
    assert "upload." not in str(caught.value)


def test_safe_file_name() -> None:
    assert prices.safe_file_name("/a/b\\c/<b>d.csv") == "_b_d.csv"
    assert prices.safe_file_name("x" * 200 + ".csv")[-4:] == ".csv"
    assert len(prices.safe_file_name("x" * 200 + ".csv")) == 80
    assert prices.safe_file_name("/") == "file"


def test_catalogue_lists_damaged_panels(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "broken").mkdir()
    table = prices.catalogue_table(store.list()).set_index("name")
    assert table.loc["sample", "tickers"] == 20
    assert table.loc["sample", "fault"] == ""
    assert table.loc["broken", "fault"]


def test_issues_name_symbol_and_day(panel: Panel) -> None:
    table = prices.issues_table(panel)
    jump = table[table["kind"] == "jump"].iloc[0]
    assert jump["day"]
    assert jump["symbol"] in jump["message"]
