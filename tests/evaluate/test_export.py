"""Exported tables: Parquet is lossless, CSV cells cannot be executed as spreadsheet formulas."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finrl_pod.evaluate.export import csv_text, escape_formula, write_table

DANGEROUS = ["=1+1", "+1", "-cmd", "@SUM(A1)", "\tx", "\r=x", '=HYPERLINK("http://x","y")']


@pytest.mark.parametrize("text", DANGEROUS)
def test_formulas_are_escaped_in_cells_and_headings(text: str) -> None:
    cells = list(csv.reader(io.StringIO(csv_text(pd.DataFrame({text: [text, "plain"], "n": [1, 2]})), newline="")))
    assert cells == [[f"'{text}", "n"], [f"'{text}", "1"], ["plain", "2"]]
    assert escape_formula("safe=1") == "safe=1"


def test_line_breaks_inside_a_cell_are_quoted() -> None:
    for text in ("x\r=1+1", "x\n=1+1", "x\r\n=1+1"):
        assert csv_text(pd.DataFrame({"a": [text]})).splitlines()[1].startswith('"x')
        assert list(csv.reader(io.StringIO(csv_text(pd.DataFrame({"a": [text]})), newline=""))) == [["a"], [text]]


def test_numbers_are_unchanged_and_times_are_iso_text(tmp_path: Path) -> None:
    values = np.array([-0.1, 1 / 3, np.nan])
    times = np.array(["2020-01-02", "2020-01-03", "2020-01-06"], "datetime64[ns]")
    table = {"time": times, "symbol": np.array(["=A", "B", "C"], object), "weight": values, "count": [1, 2, 3]}
    parquet, text = write_table(tmp_path / "t", pd.DataFrame(table))
    read = pd.read_parquet(parquet)
    assert read["symbol"].tolist() == ["=A", "B", "C"]  # Parquet is not escaped
    np.testing.assert_array_equal(read["weight"], values)
    np.testing.assert_array_equal(read["time"].to_numpy(), times)
    assert text.read_text().splitlines() == [
        "time,symbol,weight,count",
        "2020-01-02,'=A,-0.1,1",
        "2020-01-03,B,0.3333333333333333,2",
        "2020-01-06,C,,3",
    ]
    intraday = csv_text(pd.DataFrame({"time": times + np.timedelta64(90, "m")}))
    assert "2020-01-02T01:30:00" in intraday
