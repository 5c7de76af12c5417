"""Imports in the background: result, refusal, cancellation, and headings that a spreadsheet would execute."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import pytest
from finrl_pod_app.dashboard.pages import widgets
from finrl_pod_app.dashboard.queries.prices import ImportJob

from finrl_pod.data.sources.read_options import ReadOptions
from finrl_pod.errors import DataError

ROWS = b"time,symbol,close\n2024-01-02,AAA,10\n2024-01-03,AAA,11\n2024-01-04,AAA,12\n"
OPTIONS = ReadOptions()


@pytest.mark.slow
def test_file_is_read_in_the_background() -> None:
    job = ImportJob(("a", OPTIONS), "prices.csv", ROWS, OPTIONS)
    assert job.wait(120.0)
    assert job.result().symbols == ("AAA",)


@pytest.mark.slow
def test_refused_file_names_the_upload() -> None:
    job = ImportJob(("a", OPTIONS), "prices.csv", ROWS.replace(b"11", b"ten"), OPTIONS)
    assert job.wait(120.0)
    with pytest.raises(DataError, match=r"prices\.csv"):
        job.result()


@pytest.mark.slow
def test_cancelled_import_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finrl_pod.data.sources.bounded._CODE", "import time; time.sleep(600)")
    job = ImportJob(("a", OPTIONS), "prices.csv", ROWS, OPTIONS)
    assert not job.wait(0.5)
    start = time.monotonic()
    job.cancel()
    assert job.wait(60.0)
    assert time.monotonic() - start < 60.0
    with pytest.raises(DataError, match="was cancelled"):
        job.result()


def test_headings_from_files_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(widgets.st, "dataframe", lambda frame, **options: drawn.update(options, frame=frame))
    frame = pd.DataFrame({"time": ["=1"], "=cmd|' /C calc'!A0": [1.0]})
    widgets.show_table(frame, {name: name for name in frame.columns}, "key", alt="text")
    assert list(drawn["frame"].columns) == ["time", "'=cmd|' /C calc'!A0"]
    assert list(drawn["column_config"].values()) == ["time", "'=cmd|' /C calc'!A0"]
    assert drawn["frame"]["time"].tolist() == ["'=1"]
