"""Lines of results and messages wrap at COLUMNS in a pipe."""

from __future__ import annotations

import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.setup.terminal import make_console, wrapped

WIDTH = 80


@pytest.fixture
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


@pytest.mark.usefixtures("_narrow")
def test_long_words_and_indents_are_kept() -> None:
    path = "/" + "folder/" * 12
    text = f"  the report of this run was written to {path} just now\n- short"
    assert wrapped(text) == f"  the report of this run was written to\n  {path}\n  just now\n- short"


def test_lines_in_a_pipe_without_columns_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = "word " * 100
    assert wrapped(text) == text


def test_names_of_classes_in_files_are_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print("ppo on boat.py:Boat: 64 steps")
    assert capsys.readouterr().out == "ppo on boat.py:Boat: 64 steps\n"


@pytest.mark.slow
@pytest.mark.usefixtures("_narrow")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["tournament", "--help"], 0),
        (["data", "import", "--help"], 0),
        (["backtest", "--strategy", "equal_weight", "--start", "2015-01-01", "--end", "2015-06-30"], 0),
        (["backtest", "--strategy", "equal_weigth", "--start", "2015-01-01", "--end", "2015-06-30"], 2),
        (["tournament", "missing.toml"], 2),
        (["algorithms"], 0),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_wrap_their_lines(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == code
    output = capsys.readouterr()
    lines = (output.out + output.err).splitlines()
    assert lines
    assert [line for line in lines if len(line) > WIDTH] == []
