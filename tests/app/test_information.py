"""Commands that only inform: shell completion, the glossary, lists; they load no torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.cli.setup_commands import COMPLETE, Shell
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.report.verdict_text import verdict_lines

from finrl_pod.promotion.trial_registry import Look, Trial, TrialRegistry
from finrl_pod.promotion.verdict import Rule, Verdict


@pytest.mark.parametrize("shell", get_args(Shell))
def test_script_asks_the_command_itself(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETE}=complete_{shell}" in script
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("finrl-pod tour", ["tournament"]),
        ("finrl-pod data im", ["import"]),
        ("finrl-pod backtest --cost", ["--cost-bps"]),
    ],
)
def test_commands_and_options_are_completed(
    words: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(COMPLETE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert run([]) == 0
    assert capsys.readouterr().out.split() == expected


def test_unknown_shells_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "tcsh"]) == 2
    assert "SHELL must be one of bash, zsh, fish, got tcsh" in capsys.readouterr().err


def test_glossary_explains_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["glossary", "pbo"]) == 0
    assert capsys.readouterr().out.startswith("probability of backtest overfitting (PBO): share of splits")
    assert run(["glossary"]) == 0
    assert "](" not in capsys.readouterr().out
    assert run(["glossary", "tunrover"]) == 2
    assert "did you mean turnover?" in capsys.readouterr().err
    assert run(["glossary", "shrape"]) == 2
    assert "did you mean Sharpe?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "subjects", "earlier"),
    [([], range(2, 7), ": 2 earlier looks, see --all\n"), (["--last", "1"], [6], "6 earlier looks"),
     (["--all"], range(7), "")],
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
    registry.add("d" * 64, "run", [Trial("a", 0, 0, "2019-01-02", "2019-12-31")], "mine")
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


@pytest.mark.parametrize(
    "arguments", [["data", "list"], ["trials"], ["--help"], ["glossary"], ["completion", "zsh"], ["algorithms"]]
)
def test_commands_that_inform_load_no_torch(arguments: list[str], tmp_path: Path) -> None:
    code = (
        f"import sys\nfrom finrl_pod_app.cli.main import run\nassert run({arguments!r}) == 0\n"
        "heavy = [name for name in ('torch', 'scipy', 'plotly') if name in sys.modules]\n"
        "sys.stderr.write(','.join(heavy))"
    )
    home = {**os.environ, "FINRL_POD_HOME": str(tmp_path), "FINRL_POD_DATA": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=home)
    assert (done.returncode, done.stderr) == (0, "")
