"""Run directories: mismatches, damaged files and failed writes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.settings.run import RunConfig, TournamentConfig
from finrl_pod.tournament.learning_curves import LearningCurves
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.run_state import RunState, initial_state
from tests.tournament.sample_snapshots import snapshot

CONFIG, DATA = RunConfig(seed=3, tournament=TournamentConfig(pods=2)), "d" * 64
METRICS: dict[str, Any] = {
    "slots": [0, 1],
    "rows": [
        {"samples": [100, 200], "reward": [0.25, None], "entropy": [1.0, 2.0]},
        {"samples": [150, 250], "reward": [0.5, -0.5], "entropy": [1.0, 2.0]},
    ],
    "agents": [],
}
CURVES = LearningCurves((0, 1), tuple(METRICS["rows"]))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", CONFIG, DATA)


def state(generation: int) -> RunState:
    start = initial_state(CONFIG.tournament, ())
    return dataclasses.replace(start, generation=generation, samples=100 * generation, seconds=0.5)


def save(run: RunDirectory, generation: int, keep: set[str] | None = None) -> None:
    agents = [snapshot(f"g{generation:02d}s{slot:02d}", seed=slot) for slot in (0, 1)]
    run.save_generation(generation, agents, keep or {a.id for a in agents}, CURVES, state(generation))


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_new_run_records_config_and_data_hash(run: RunDirectory) -> None:
    assert run.config == CONFIG
    assert run.config.sha256 == CONFIG.sha256
    assert run.data_sha256 == DATA
    assert run.state() is None
    assert names(run.path) == ["config.json"]


def test_resume_accepts_the_recorded_config_and_data(run: RunDirectory) -> None:
    assert RunDirectory.resume(run.path, CONFIG, DATA).path == run.path


def test_saved_generation_is_loaded(run: RunDirectory) -> None:
    save(run, 0)
    reopened = RunDirectory.open(run.path)
    assert reopened.state() == state(0)
    assert reopened.snapshot("g00s01").samples == snapshot().samples
    assert json.loads((run.path / "metrics" / "0000.json").read_text()) == METRICS


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            lambda path: RunDirectory.create(path, CONFIG, DATA),
            "already holds a run; choose another folder, or resume it",
        ),
        (
            lambda path: RunDirectory.resume(path, dataclasses.replace(CONFIG, seed=4), DATA),
            "another config or seed",
        ),
        (
            lambda path: RunDirectory.resume(
                path, dataclasses.replace(CONFIG, tournament=TournamentConfig(pods=3)), DATA
            ),
            "another config or seed",
        ),
        (lambda path: RunDirectory.resume(path, CONFIG, "e" * 64), "was made on other data"),
        (lambda path: RunDirectory.resume(path / "nothing", CONFIG, DATA), "no run to resume"),
        (lambda path: RunDirectory.open(path), "no run with a finished generation"),
        (lambda path: RunDirectory.create(path / "config.json" / "below", CONFIG, DATA), "cannot write"),
        (lambda path: RunDirectory.create(path / "config.json", CONFIG, DATA), "cannot write"),
    ],
)
def test_mismatches_raise_and_change_nothing(run: RunDirectory, action: Callable[[Path], Any], message: str) -> None:
    before = (run.path / "config.json").read_bytes()
    with pytest.raises(RunError) as caught:
        action(run.path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names(run.path) == ["config.json"]
    assert (run.path / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "is missing"),
        ('{"config_sha256": 3, "data_sha256": 4, "config": 5}', "is missing"),
    ],
)
def test_damaged_config_is_reported(run: RunDirectory, text: str, message: str) -> None:
    (run.path / "config.json").write_text(text)
    for action in (lambda: run.config, lambda: RunDirectory.resume(run.path, CONFIG, DATA)):
        with pytest.raises(RunError) as caught:
            action()
        assert message in str(caught.value)


def test_config_with_an_unknown_setting_is_reported(run: RunDirectory) -> None:
    data = json.loads((run.path / "config.json").read_text())
    data["config"]["tournament"]["unknown"] = 1
    (run.path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"tournament\.unknown"):
        _ = run.config


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"generation": 3}', '{"generation": 1, "leaderboard": []'])
def test_damaged_state_is_reported(run: RunDirectory, text: str) -> None:
    (run.path / "state.json").write_text(text)
    with pytest.raises(RunError, match=r"state\.json is damaged"):
        run.state()


def test_unused_snapshots_are_removed_and_other_files_kept(run: RunDirectory) -> None:
    save(run, 0)
    folder = run.path / "snapshots"
    (folder / "notes.txt").write_text("notes")
    (folder / "models").mkdir()
    (folder / ".g00s00.json.x1y2z3").write_text("{")  # left by a killed process
    save(run, 1, keep={"g00s01", "g01s00", "g01s01"})
    expected = [f"{agent}.{kind}" for agent in ("g00s01", "g01s00", "g01s01") for kind in ("json", "safetensors")]
    assert names(folder) == sorted([*expected, "models", "notes.txt"])


@pytest.mark.slow
@pytest.mark.parametrize("failing", range(8))
def test_failed_write_leaves_the_last_generation_intact(
    run: RunDirectory, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 0)
    before, replace, count = state(0), os.replace, 0

    def failing_replace(source: Any, target: Any) -> None:
        nonlocal count
        count += 1
        if count > failing:
            raise OSError(28, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing_replace)
    with pytest.raises(RunError, match=r"cannot write .*: No space left on device"):
        save(run, 1)
    monkeypatch.undo()
    assert count == failing + 1
    assert RunDirectory.open(run.path).state() == before
    for agent in ("g00s00", "g00s01"):
        assert run.snapshot(agent).id == agent
    assert not [file for file in run.path.rglob(".*") if file.is_file()], "no temporary files may remain"
    save(run, 1)
    assert RunDirectory.open(run.path).state() == state(1)


@pytest.mark.slow
def test_tensorboard_reads_the_event_files(run: RunDirectory) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    save(run, 0)
    save(run, 1)
    save(run, 1)  # repeated as after a kill: written once
    log = EventAccumulator(str(run.path / "tensorboard" / "slot-01"))
    log.Reload()
    assert log.Tags()["scalars"] == ["entropy", "reward"]
    entropy = [(event.step, event.value) for event in log.Scalars("entropy")]
    assert entropy == [(200, 2.0), (250, 2.0)] * 2
    assert [(event.step, event.value) for event in log.Scalars("reward")] == [(250, -0.5)] * 2
    assert names(run.path / "tensorboard") == ["slot-00", "slot-01"]


def test_state_without_a_field_is_reported(run: RunDirectory) -> None:
    save(run, 0)
    values = json.loads((run.path / "state.json").read_text())
    del values["history"]
    (run.path / "state.json").write_text(json.dumps(values))
    with pytest.raises(RunError, match=r"state\.json is damaged at history"):
        run.state()


def test_damaged_result_is_reported(run: RunDirectory) -> None:
    assert run.result(0, 1) is None
    (run.path / "results").mkdir()
    (run.path / "results" / "0001-0.safetensors").write_bytes(b"{}")
    with pytest.raises(RunError, match=r"0001-0\.safetensors is damaged; remove it"):
        run.result(0, 1)


def test_metrics_without_agents_are_reported(run: RunDirectory) -> None:
    save(run, 0)
    (run.path / "metrics" / "0000.json").write_text(json.dumps({"slots": [], "rows": []}))
    with pytest.raises(RunError, match=r"0000\.json is damaged: agents is missing"):
        run.agents()
