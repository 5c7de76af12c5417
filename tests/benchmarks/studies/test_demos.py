"""The demos: commands of their page, repeated runs, rows, and environments without Box2D."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from finrl_pod_app.cli.main import run

from benchmarks.studies.demos import PAGE, demo_commands, jobs, rows_of, run_demo
from benchmarks.studies.demos import DemoSettings as Settings

COMMANDS = demo_commands(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_a_command_for_each_environment() -> None:
    assert list(COMMANDS) == ["CartPole-v1", "Hopper-v5", "LunarLander-v3", "BipedalWalker-v3"]
    assert all("--algorithm" in command for command in COMMANDS.values())


@pytest.mark.parametrize("env", ["LunarLander-v3", "BipedalWalker-v3"])
def test_without_box2d_the_command_ends_with_the_pip_command(
    env: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    _, *arguments = shlex.split(COMMANDS[env])
    assert run([*arguments, "--out", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert 'pip install "gymnasium[box2d]"' in message
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_has_score_and_seconds() -> None:
    command = COMMANDS["CartPole-v1"].replace("--steps 50000", "--steps 64 --set horizon=8")
    record = run_demo(command, 1)
    assert record["steps"] == 64
    assert 1 <= record["score"] <= 500
    assert record["cpu_seconds"] > 0
    assert record["versions"]["gymnasium"]


def test_each_seed_runs_every_selected_command() -> None:
    keys = [job.key for job in jobs(Settings(only=("Hopper-v5",), seeds=2), COMMANDS)]
    assert keys == [{"env": "Hopper-v5", "command": COMMANDS["Hopper-v5"], "seed": seed} for seed in range(2)]


def test_rows_leave_out_results_of_other_commands() -> None:
    record = {"command": COMMANDS["Hopper-v5"], "cpu_seconds": 4.0, "seconds": 5.0}
    records = [{**record, "score": score} for score in (3.0, 1.0, 2.0)]
    (row,) = rows_of(COMMANDS, [*records, {**record, "command": "an earlier one", "score": 9.0}])
    assert (row.name, row.value, row.low, row.high) == ("Hopper-v5", 2.0, 1.0, 3.0)
    assert row.config["cpu_seconds"] == 4.0
