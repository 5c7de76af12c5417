"""Commands that only inform: lists; they load no torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.report.verdict_text import verdict_lines

from finrl_pod.promotion.trial_registry import Look, Trial, TrialRegistry
from finrl_pod.promotion.verdict import Rule, Verdict


@pytest.mark.parametrize(
    ("options", "subjects", "earlier"),
    [([], range(2, 7), ": 2 earlier looks, see --all\n"), (["--all"], range(7), "")],
)  # fmt: skip
def test_trials_lists_the_last_looks_or_all(
    options: list[str],
    subjects: Iterable[int],
    earlier: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path))
    registry = TrialRegistry()
    for i in range(7):
        registry.look(Look("d" * 64, f"subject {i}", "2020-01-02", "2020-12-31", f"backtest of {i}"))
    registry.add("d" * 64, "run", [Trial("a", 0, 0, "2019-01-02", "2019-12-31")])
    assert run(["trials", *options]) == 0
    lines = capsys.readouterr().out
    listed = re.findall(
        r"look (\d) of 7 at bars that overlap 2020-01-02 to 2020-12-31, on .* \(backtest of (\d)\)", lines
    )
    assert listed == [(str(i + 1), str(i)) for i in subjects]
    assert earlier in lines
    assert ("earlier look" in lines) is bool(earlier)


def test_the_verdict_is_a_list_of_rules() -> None:
    rules = tuple(
        Rule(name="edge", value=None, limit=None, passed=passed, sentence=sentence)
        for passed, sentence in (
            (True, "The audit found no failures."),
            (False, "PSR against equal weight: 0.52, required 0.95"),
        )
    )
    report = RunReport(verdict=Verdict(promoted=False, rules=rules, reasons=()))
    assert verdict_lines(report) == [
        "Not promoted. The test for an edge cannot be computed.",
        "1 of 2 rules pass:",
        "- FAIL: PSR against equal weight: 0.52, required 0.95",
        "- pass: The audit found no failures",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["data", "list"], ["trials"], ["--help"], ["algorithms"]])
def test_commands_that_inform_load_no_torch(arguments: list[str], tmp_path: Path) -> None:
    code = (
        f"import sys\nfrom finrl_pod_app.cli.main import run\nassert run({arguments!r}) == 0\n"
        "heavy = [name for name in ('torch', 'scipy', 'plotly') if name in sys.modules]\n"
        "sys.stderr.write(','.join(heavy))"
    )
    home = {**os.environ, "FINRL_POD_HOME": str(tmp_path), "FINRL_POD_DATA": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=home)
    assert (done.returncode, done.stderr) == (0, "")
