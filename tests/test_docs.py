"""Commands and Python examples in the documentation are valid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from finrl_pod_app.cli.main import app
from finrl_pod_app.services.backtests import run_backtest

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PROGRAM = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?finrl-pod ")
SHORT = (("500_000", "2_000"), ("threads=2", "threads=1"))  # shortens the README's example, which trains for a minute


def blocks(page: Path, language: str) -> Iterator[str]:
    """Return the fenced code blocks of a page in one language; "" selects blocks without a language."""
    yield from re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def command_lines(page: Path) -> Iterator[str]:
    for text in (block for language in ("", "bash", "sh", "console") for block in blocks(page, language)):
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            if PROGRAM.match(line.strip()):
                yield PROGRAM.sub("", line.strip())


COMMANDS = sorted({(page.name, line) for page in PAGES for line in command_lines(page)})


def parse(command: Any, arguments: list[str], parent: Any = None) -> str:
    """Parse the arguments without running the command; return the name of the selected command.

    Raises typer.TyperException for invalid arguments.
    """
    context = command.make_context(command.name, arguments, parent=parent)
    rest = [*context._protected_args, *context.args]
    if not hasattr(command, "resolve_command") or not rest:
        return str(command.name)
    _, subcommand, remaining = command.resolve_command(context, rest)
    return parse(subcommand, remaining, context)


def test_commands_are_found_and_invalid_ones_refused() -> None:
    assert len(COMMANDS) > 40
    with pytest.raises(typer.TyperException):
        parse(typer.main.get_command(app), ["backtest", "--no-such-option"])
    with pytest.raises(typer.TyperException):
        parse(typer.main.get_command(app), ["no-such-command"])


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_documented_commands_are_valid(page: str, line: str) -> None:
    arguments = shlex.split(line, comments=True)
    assert parse(typer.main.get_command(app), arguments) in arguments


def test_documented_strategy_trades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    (text,) = (block for block in blocks(ROOT / "docs" / "backtests.md", "python") if "class Mine" in block)
    (tmp_path / "strategies.py").write_text(text)
    document = run_backtest(f"{tmp_path / 'strategies.py'}:Mine", data="sample", start="1990-01-02", end="1995-12-29")
    assert document["test"]["strategies"]["Mine"]["turnover"] > 0.5


def test_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    (text,) = blocks(ROOT / "README.md", "python")
    for long, short in SHORT:
        assert long in text
        text = text.replace(long, short)
    names: dict[str, Any] = {}
    exec(compile(text, "README.md", "exec"), names)
    assert any((tmp_path / "agents").glob("first*"))
    assert names["step"].reward.shape == (1, 256)
    ratios = [float(line) for line in capsys.readouterr().out.splitlines()[-2:]]
    assert all(abs(ratio) < 10 for ratio in ratios)
