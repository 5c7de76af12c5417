"""`finrl-pod migrate` on files written before settings were renamed; results afterwards equal those of that version."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app import api
from finrl_pod_app.cli.main import run as run_command

from finrl_pod.settings.run import load

DATA = Path(__file__).parent / "data"
PROCESSORS = 1e-6  # relative; float32 policies add in another order on another processor than the expected values'
EXPECTED = json.loads((DATA / "expected.json").read_text())
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the files of the former version to the working directory and its registry to the user's folder."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    for packed in tmp_path.glob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "register.sqlite").rename(home / "register.sqlite")
    monkeypatch.setenv("FINRL_POD_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run finrl-pod; return exit code, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run_command(list(arguments))
        return code, *capfd.readouterr()

    return call


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def query(register: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(register)) as database:
        return database.execute(statement).fetchall()


def test_former_files_are_refused_naming_the_migrate_command(files: Path, command: Command) -> None:
    for arguments in (["backtest", "run"], ["audit", "run"]):
        code, _, error = command(*arguments)
        assert code == 2
        assert "finrl-pod migrate run" in error
    code, _, error = command("tournament", "run.toml", "--out", "half", "--resume")
    assert code == 2
    assert "agent.discount was renamed: use agent.gamma" in error
    with pytest.raises(Exception, match=r"finrl-pod migrate .*mine\.json"):
        api.load("agents/mine")


def test_migration_creates_backups_and_is_idempotent(files: Path, command: Command) -> None:
    former = contents(files / "run")
    code, output, _ = command("migrate", "run", "run.toml", "--json")
    assert code == 0
    result = json.loads(output)
    assert {Path(path).name.split(".bak-")[0] for path in result["backups"]} == {"run", "run.toml", "register.sqlite"}
    backup = next(Path(path) for path in result["backups"] if Path(path).name.startswith("run.bak-"))
    copied = contents(backup)
    assert {"config.json", "state.json", "snapshots/g01s00.json", "metrics/0001.json", "report.json"} <= set(copied)
    assert all(former[name] == data for name, data in copied.items())
    converted = contents(files)
    code, output, _ = command("migrate", "run", "run.toml", "home/register.sqlite", "--json")
    assert code == 0
    assert {row["status"] for row in json.loads(output)["files"]} == {"current"}
    assert contents(files) == converted


def test_given_backup_folder_receives_the_former_files(files: Path, command: Command) -> None:
    former = (files / "run.toml").read_text()
    assert command("migrate", "run.toml", "--backup", "backup")[0] == 0
    assert (files / "backup" / "run.toml").read_text() == former
    assert not list(files.glob("*.bak-*"))


def test_config_file_keeps_its_comments_and_values(files: Path, command: Command) -> None:
    former = (files / "run.toml").read_text()
    assert command("migrate", "run.toml")[0] == 0
    text = (files / "run.toml").read_text()
    assert 'buy_allocation = "proportional"  # one factor for all buys\n' in text
    assert text.splitlines()[0] == former.splitlines()[0]
    assert len(text.splitlines()) == len(former.splitlines())
    config = load(files / "run.toml")
    values = tomllib.loads(former)
    assert config.gate.max_drawdown == values["gate"]["drawdown"]
    assert "# excess = -50.0\n" in text  # removed since
    assert config.tournament.exploit_fraction == values["tournament"]["inherit"]
    assert config.cohorts[0].gamma == values["cohorts"][0]["discount"]


def test_backtest_of_a_converted_champion_is_unchanged(files: Path, command: Command) -> None:
    assert command("migrate", "run")[0] == 0
    code, output, _ = command("backtest", "run", "--json")
    assert code == 0
    metrics = json.loads(output)["test"]["strategies"]["champion"]  # later versions report more of them
    assert {name: metrics[name] for name in EXPECTED["backtest"]} == pytest.approx(EXPECTED["backtest"], rel=PROCESSORS)


@pytest.mark.slow
def test_converted_run_keeps_its_trials_and_looks(files: Path, command: Command) -> None:
    register = files / "home" / "register.sqlite"
    former = json.loads((files / "run" / "verdict.json").read_text())
    counts = query(register, "SELECT COUNT(*), COUNT(DISTINCT run) FROM trials"), query(register, "SELECT * FROM looks")
    assert command("migrate", "run", "run.toml")[0] == 0
    assert command("tournament", "run.toml", "--out", "run", "--resume", "--json")[0] == 0  # evaluates it again
    code, output, _ = command("promote", "run", "--json")
    assert code == 1  # refused, as before
    verdict = json.loads(output)
    assert (verdict["looks"], verdict["trials"]) == (former["looks"], former["trials"])
    assert [(rule["name"], rule["value"]) for rule in verdict["rules"]] == [
        (rule["name"], rule["value"]) for rule in former["rules"]
    ]
    ((trials, runs),) = query(register, "SELECT COUNT(*), COUNT(DISTINCT run) FROM trials")
    ((before, runs_before),) = counts[0]
    # The champion's returns differ in their last digits on another processor, where they are a trial of their own.
    assert runs == runs_before
    assert trials in (before, before + 1)
    assert len(query(register, "SELECT * FROM looks")) == len(counts[1])
    assert "gamma" in query(register, "SELECT hyperparameters FROM trials WHERE generation = 0")[0][0]
    assert command("audit", "run")[0] in (0, 1)


@pytest.mark.slow
def test_converted_tournament_resumes_with_the_same_result(files: Path, command: Command) -> None:
    assert command("migrate", "half", "run.toml")[0] == 0
    code, output, _ = command("tournament", "run.toml", "--out", "half", "--resume", "--json")
    assert code == 0
    report = json.loads(output)
    # The second generation is trained in float32, whose rounding differs between versions.
    assert [entry["id"] for entry in report["leaderboard"]] == [entry["id"] for entry in EXPECTED["leaderboard"]]
    scores = [entry["score"] for entry in report["leaderboard"]]
    assert scores == pytest.approx([entry["score"] for entry in EXPECTED["leaderboard"]], rel=1e-6)
    metrics = report["test"]["strategies"]["champion"]
    assert {name: metrics[name] for name in EXPECTED["resumed_test"]} == pytest.approx(
        EXPECTED["resumed_test"], rel=1e-5
    )


@pytest.mark.slow
def test_converted_gymnasium_run_resumes_with_the_same_result(files: Path, command: Command) -> None:
    options = ["--env", "gym:CartPole-v1", "--algorithm", "dqn", "--steps", "3000", "--evaluate", "2", "--seed", "3"]
    names = ("learning_starts=64", "batch_size=16", "buffer_size=256", "hidden=[8]", "exploration_samples=100")
    options += [part for name in names for part in ("--set", name)]
    code, _, error = command("train", *options, "--resume", "--out", "gym_half")
    assert code == 2
    assert "finrl-pod migrate gym_half" in error
    assert command("migrate", "gym_half")[0] == 0
    code, output, _ = command("train", *options, "--resume", "--out", "gym_half", "--json")
    assert code == 0
    result = json.loads(output)
    assert result["curve"][-5:] == EXPECTED["gymnasium"]["curve"]
    assert (result["best_score"], result["score"]) == (
        EXPECTED["gymnasium"]["best_score"],
        EXPECTED["gymnasium"]["score"],
    )


def test_converted_agent_makes_the_same_decisions(files: Path, command: Command) -> None:
    assert command("migrate", "agents", "run.toml")[0] == 0
    setup = api.prepare(load(files / "run.toml"))
    result = api.backtest(setup, api.load("agents/mine"), "validation")
    assert result.equity[-5:].tolist() == pytest.approx(EXPECTED["agent_equity"], rel=PROCESSORS)


def test_converted_paper_account_replays_with_the_same_result(files: Path, command: Command) -> None:
    code, _, _ = command("migrate", "run", "paper.toml", "paper.sqlite")
    assert code == 0
    code, output, _ = command("paper", "status", "paper.toml", "--json")
    assert code == 0
    assert json.loads(output)["account"] == "simulated"
    code, output, _ = command(
        "paper", "replay", "2015-02-02", "2015-02-27", "paper.toml", "--journal", "new.sqlite", "--json"
    )
    assert code == 0
    replay = json.loads(output)
    assert {name: replay[name] for name in EXPECTED["replay"]} == EXPECTED["replay"]


def test_unknown_files_are_refused_and_unchanged(files: Path, command: Command) -> None:
    (files / "notes.json").write_text('{"agent": 3}')
    (files / "other.toml").write_text("[tool]\nname = 1\n")
    (files / "empty").mkdir()
    with closing(sqlite3.connect(files / "other.sqlite")) as database:
        database.execute("CREATE TABLE other (id)")
    former = contents(files)
    for name in ("notes.json", "other.toml", "other.sqlite", "empty", "missing"):
        code, _, error = command("migrate", "run", name)
        assert code == 2
        assert name in error
    assert contents(files) == former


def test_former_keys_in_inline_tables_are_refused(files: Path, command: Command) -> None:
    (files / "inline.toml").write_text('environment = {order = "sequential"}\n')
    code, _, error = command("migrate", "inline.toml")
    assert code == 2
    assert "inline" in error
