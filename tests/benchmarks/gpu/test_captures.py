"""Iterations of every algorithm on the simulated device: no waits, no copies from the host, no late state."""

from __future__ import annotations

import pytest

from benchmarks.gpu.captures import capture_rows, cases_of
from finrl_pod.settings.algorithm_registry import ALGORITHMS

KINDS = ("waits", "pageable_copies", "late_state")


@pytest.mark.slow
def test_every_algorithm_and_scoring_can_be_captured() -> None:
    rows = {row["name"]: row for row in capture_rows()}
    assert rows.keys() == {*ALGORITHMS, "scoring"}
    for name, row in rows.items():
        assert [row[kind] for kind in KINDS] == [0, 0, 0], row["operations"]
        assert row["cases"] == (1 if name == "scoring" else len(cases_of(ALGORITHMS[name])))


@pytest.mark.slow
def test_a_copy_from_the_host_is_counted() -> None:
    (row,) = capture_rows("copy", ["a2c"])
    assert row["pageable_copies"] == row["cases"]
    assert row["waits"] == row["late_state"] == 0
    assert any("captures.py" in operation for operation in row["operations"])
