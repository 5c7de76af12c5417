"""Imports in a child process: the same panel, the same errors, and limits on what a file may take."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finrl_pod.data.sources.bounded import ReadLimits, read_bounded
from finrl_pod.data.sources.files import read_file
from finrl_pod.errors import DataError

TEXT = "date,symbol,close\n" + "".join(f"2024-01-{d:02},{s},{d}\n" for s in "AB" for d in range(1, 29))


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text(TEXT)
    return path


@pytest.mark.slow
def test_the_child_reads_the_same_panel_and_reports_the_same_error(prices: Path) -> None:
    panel = read_bounded(prices, bar="1d")
    assert (panel.sha256, panel.name) == (read_file(prices).sha256, "prices")
    assert panel.flaws == read_file(prices).flaws
    prices.write_text(TEXT.replace(",28", ",-1"))
    with pytest.raises(DataError, match=r"prices.csv, line 29: close of A on 2024-01-28 is -1"):
        read_bounded(prices)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (ReadLimits(rows=50), "has 56 rows, and at most 50 are read"),
        (ReadLimits(columns=2), "has 3 columns, and at most 2 are read"),
        (ReadLimits(size=1000), "bytes uncompressed, and at most 1,000 are read"),
    ],
)
def test_stated_sizes_of_parquet_are_limited(tmp_path: Path, limits: ReadLimits, message: str) -> None:
    rows = 56
    table = pa.table({"time": np.arange(rows).astype("datetime64[D]"), "symbol": ["A"] * rows, "close": np.ones(rows)})
    pq.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(DataError, match=message):
        read_bounded(tmp_path / "p.parquet", limits)


def test_unpacked_sizes_of_gzip_are_limited(tmp_path: Path) -> None:
    path = tmp_path / "p.csv.gz"
    path.write_bytes(gzip.compress(TEXT.encode() + b"\n" * 5_000_000))
    with pytest.raises(DataError, match="rows, and at most 1,000 are read"):
        read_bounded(path, ReadLimits(rows=1000))
    with pytest.raises(DataError, match="bytes uncompressed, and at most 1,000 are read"):
        read_bounded(path, ReadLimits(size=1000))


@pytest.mark.slow
def test_memory_of_the_child_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    with path.open("w") as out:
        out.write("date,close\n")
        out.writelines("2024-01-02,1.5\n" for _ in range(1_000_000))
    with pytest.raises(DataError, match=r"p.csv needs more than 0.05 GB of memory to read: split it"):
        read_bounded(path, ReadLimits(memory=50_000_000), symbol="A")
