"""A run on disk: what is refused, and that a failure leaves the last whole generation."""

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
from finrl_pod.tournament.run_directory import RunDirectory
from tests.tournament.agents import snapshot

CONFIG, DATA = RunConfig(seed=3, tournament=TournamentConfig(pods=2)), "d" * 64
METRICS: dict[str, Any] = {
    "slots": [0, 1],
    "rows": [
        {"samples": [100, 200], "reward": [0.25, None], "entropy": [1.0, 2.0]},
        {"samples": [150, 250], "reward": [0.5, -0.5], "entropy": [1.0, 2.0]},
    ],
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", CONFIG, DATA)


def state(generation: int) -> dict[str, Any]:
    return {
        "generation": generation,
        "leaderboard": [],
        "current": [],
        "parents": {},
        "samples": 100 * generation,
        "train_seconds": 0.5,
    }


def save(run: RunDirectory, generation: int, keep: set[str] | None = None) -> None:
    agents = [snapshot(f"g{generation:02d}s{slot:02d}", seed=slot) for slot in (0, 1)]
    run.save_generation(generation, agents, keep or {a.id for a in agents}, METRICS, state(generation))


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_new_run_records_config_and_data(run: RunDirectory) -> None:
    assert run.config == CONFIG
    assert run.config.sha256 == CONFIG.sha256
    assert run.data_sha256 == DATA
    assert run.state() is None
    assert names(run.path) == ["config.json"]


def test_a_run_is_resumed_with_its_own_config_and_data(run: RunDirectory) -> None:
    assert RunDirectory.resume(run.path, CONFIG, DATA).path == run.path


def test_a_generation_comes_back(run: RunDirectory) -> None:
    save(run, 0)
    again = RunDirectory.open(run.path)
    assert again.state() == state(0)
    assert again.snapshot("g00s01").samples == snapshot().samples
    assert json.loads((run.path / "metrics" / "0000.json").read_text()) == METRICS


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda path: RunDirectory.create(path, CONFIG, DATA), "already holds a run; add --resume"),
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
def test_mismatches_are_refused_without_changes(run: RunDirectory, action: Callable[[Path], Any], words: str) -> None:
    before = (run.path / "config.json").read_bytes()
    with pytest.raises(RunError) as caught:
        action(run.path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names(run.path) == ["config.json"]
    assert (run.path / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "config is missing"),
        ('{"config_sha256": 3, "data_sha256": 4, "config": 5}', "config is missing"),
    ],
)
def test_a_damaged_config_is_reported_in_one_line(run: RunDirectory, text: str, words: str) -> None:
    (run.path / "config.json").write_text(text)
    for action in (lambda: run.config, lambda: RunDirectory.resume(run.path, CONFIG, DATA)):
        with pytest.raises(RunError) as caught:
            action()
        assert words in str(caught.value)


def test_a_config_of_another_version_is_reported_in_one_line(run: RunDirectory) -> None:
    facts = json.loads((run.path / "config.json").read_text())
    facts["config"]["tournament"]["mood"] = "good"
    (run.path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match=r"tournament\.mood"):
        _ = run.config


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"generation": 3}', '{"generation": 1, "leaderboard": []'])
def test_a_damaged_state_is_reported_in_one_line(run: RunDirectory, text: str) -> None:
    (run.path / "state.json").write_text(text)
    with pytest.raises(RunError, match=r"state\.json is damaged"):
        run.state()


def test_unused_snapshots_are_removed_and_foreign_files_kept(run: RunDirectory) -> None:
    save(run, 0)
    folder = run.path / "snapshots"
    (folder / "notes.txt").write_text("mine")
    (folder / "models").mkdir()
    (folder / ".g00s00.json.k1ll3d").write_text("half")  # its writer was killed
    save(run, 1, keep={"g00s01", "g01s00", "g01s01"})
    kept = [f"{agent}.{kind}" for agent in ("g00s01", "g01s00", "g01s01") for kind in ("json", "safetensors")]
    assert names(folder) == sorted([*kept, "models", "notes.txt"])


@pytest.mark.parametrize("failing", range(8))
def test_when_a_write_fails_the_last_generation_stays_whole(
    run: RunDirectory, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 0)
    before, replace, count = state(0), os.replace, 0

    def broken(source: Any, target: Any) -> None:
        nonlocal count
        count += 1
        if count > failing:
            raise OSError(28, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(RunError, match=r"cannot write .*: No space left on device"):
        save(run, 1)
    monkeypatch.undo()
    assert count == failing + 1
    assert RunDirectory.open(run.path).state() == before
    for agent in ("g00s00", "g00s01"):
        assert run.snapshot(agent).id == agent
    assert not [file for file in run.path.rglob(".*") if file.is_file()], "temporary files are left"
    save(run, 1)
    assert RunDirectory.open(run.path).state() == state(1)


def test_tensorboard_reads_the_log(run: RunDirectory) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    save(run, 0)
    save(run, 1)
    save(run, 1)  # as after a kill: written again, counted once
    log = EventAccumulator(str(run.path / "tensorboard" / "slot-01"))
    log.Reload()
    assert log.Tags()["scalars"] == ["entropy", "reward"]
    entropy = [(event.step, event.value) for event in log.Scalars("entropy")]
    assert entropy == [(200, 2.0), (250, 2.0)] * 2
    assert [(event.step, event.value) for event in log.Scalars("reward")] == [(250, -0.5)] * 2
    assert names(run.path / "tensorboard") == ["slot-00", "slot-01"]
