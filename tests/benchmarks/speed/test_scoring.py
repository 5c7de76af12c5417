"""The scoring benchmark: both paths of every policy, with equal equity."""

from __future__ import annotations

import json

import pytest

from benchmarks.runner import main
from finrl_pod.native.prebuild import find_compiler


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_rows_compare_both_paths(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--assets", "3,5", "--pods", "2", "--bars", "6", "--runs", "1", "--hidden", "8"]
    assert main(["scoring", "--json", *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 2 * 2 * 3
    assert {row["name"] for row in rows} == {"scoring python", "scoring compiled"}
    assert {row["config"]["assets"] for row in rows} == {3, 5}
    assert all(row["value"] > 0 and row["config"]["pods"] == 2 for row in rows)
    differences = [row["config"]["max_difference"] for row in rows if row["name"] == "scoring compiled"]
    assert max(differences) <= 1e-9
