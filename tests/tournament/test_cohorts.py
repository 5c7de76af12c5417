"""Tournaments of several algorithms: cohorts, one leaderboard, and replay buffers saved between generations."""

from __future__ import annotations

import itertools
import json
import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.settings.algorithm_configs import DDPGConfig, SACConfig
from finrl_pod.settings.run import RunConfig, parse
from finrl_pod.tournament import cohort as cohort_module
from finrl_pod.tournament.assignment import join_segments
from finrl_pod.tournament.dispatch import load_segments
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Positions, Window
from tests.tournament.small_tournament import SAMPLES, small_config, small_market, tournament

# PPO: 64 samples per iteration, 128 per generation, i.e. 16 steps of 8 environments. The replay buffer holds two
# generations.
OFF_POLICY: dict[str, Any] = {"hidden": (4, 4), "batch_size": 16, "learning_starts": 32, "buffer_size": 256}
SAC, DDPG = SACConfig(**OFF_POLICY), DDPGConfig(**{**OFF_POLICY, "buffer_size": 40})


def mixed_config(**changes: Any) -> RunConfig:
    return small_config(pods=5, cohorts=(SAC, DDPG), leaderboard=6, **changes)


def state(folder: Path) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((folder / "state.json").read_text())
    for name in ("seconds", "scoring_seconds"):
        saved.pop(name)
    return saved


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cohorts") / "run"
    tournament(mixed_config(), folder).run()
    return folder


def test_pods_are_assigned_to_cohorts_and_share_one_leaderboard(finished: Path) -> None:
    saved, run = state(finished), RunDirectory.open(finished)
    assert [score["slot"] for score in saved["current"]] == [0, 1, 2, 3, 4]
    algorithms = [run.snapshot(score["id"]).spec["algorithm"] for score in saved["current"]]
    assert algorithms == ["ppo", "sac", "ddpg", "ppo", "sac"]
    ranked = [score["score"] for score in saved["leaderboard"]]
    assert ranked == sorted(ranked, reverse=True)
    assert {algorithms[score["slot"]] for score in saved["leaderboard"]} >= {"ppo", "sac"}
    assert saved["samples"] == 5 * 3 * 2 * SAMPLES


def test_parents_are_from_the_same_cohort(finished: Path) -> None:
    slot = {agent: int(agent.split("s")[1]) for agent in state(finished)["parents"]}
    parents = [(a, b) for a, b in state(finished)["parents"].items() if b is not None]
    assert any(slot[a] != slot[b] for a, b in parents), "at least one agent must have a parent in another slot"
    assert all(slot[a] % 3 == slot[b] % 3 for a, b in parents)


def test_learning_curves_have_the_metrics_of_each_cohort(finished: Path) -> None:
    curves = json.loads((finished / "metrics" / "0001.json").read_text())
    assert curves["slots"] == [0, 3, 1, 4, 2]
    for row in curves["rows"]:
        assert all(len(column) == 5 for column in row.values())
        slots_in_row = [i for i, samples in enumerate(row["samples"]) if samples is not None]
        assert slots_in_row in ([0, 1], [2, 3], [4])
        assert ("clip_fraction" in row) is (slots_in_row == [0, 1])
        assert ("temperature" in row) is (slots_in_row == [2, 3])


def test_champion_may_combine_algorithms(finished: Path) -> None:
    run, market = RunDirectory.open(finished), small_market()
    agents = [run.snapshot(score["id"]) for score in state(finished)["current"]]
    champion = PolicyStrategy(agents)
    assert [family.members for family in champion.groups] == [[0, 3], [1, 4], [2]]
    features = market.raw_features[120].double().numpy()
    close = market.close[120:121].numpy()
    window = Window(market.times[120:121], market.symbols, close, np.ones((1, 3), bool), features=features)
    positions = Positions(np.array([0.2, 0.1, 0.3]), 0.4, 1e6)
    each = np.array([PolicyStrategy([agent]).target_weights(window, positions) for agent in agents])
    np.testing.assert_allclose(champion.target_weights(window, positions), each.mean(0), rtol=1e-5)
    assert np.ptp(each, axis=0).max() > 1e-4, "a decision trades a twentieth of the gap"


def test_replay_buffers_persist_between_generations(finished: Path) -> None:
    run = RunDirectory.open(finished)
    kept, first = join_segments(load_segments(run, 1, 2), 256 // 4)
    assert first == 1, "two generations fill the replay buffer"
    assert kept["bar"].shape == (2, 64)
    assert int(kept["counts"][0]) == 3 * 32, "an item holds a group of four accounts"
    one, two = (run.replay(generation, 1) for generation in (1, 2))
    assert one is not None
    assert two is not None
    assert torch.equal(kept["reward"], torch.cat([one["reward"], two["reward"]], 1))
    assert run.replay(0, 2) is None, "the small buffer no longer contains generation 0"
    assert run.replay(1, 2) is not None
    assert run.replay(2, 0) is None, "PPO has no replay buffer"


class Crash(BaseException):
    """Simulated power loss."""


@pytest.mark.slow
@pytest.mark.parametrize("point", [9, 26, 45])
def test_interrupted_run_ends_like_an_uninterrupted_one(
    point: int, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, count = os.replace, 0

    def crashing_replace(source: Any, target: Any) -> None:
        nonlocal count
        count += 1
        if count == point:
            raise Crash
        replace(source, target)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crashing_replace)
        try:
            tournament(mixed_config(), folder).run()
        except Crash:
            pass
        else:
            raise AssertionError("the run must be interrupted")
    tournament(mixed_config(), folder, resume=(folder / "config.json").exists()).run()
    assert state(folder) == state(finished)
    ours, theirs = RunDirectory.open(folder), RunDirectory.open(finished)
    for score in state(folder)["current"]:
        one, two = ours.snapshot(score["id"]), theirs.snapshot(score["id"])
        assert all(torch.equal(x, two.weights[name]) for name, x in one.weights.items())
        assert all(torch.equal(x, two.optimiser[name]) for name, x in one.optimiser.items())
    last, other = ours.replay(2, 1), theirs.replay(2, 1)
    assert last is not None
    assert other is not None
    assert all(torch.equal(x, other[name]) for name, x in last.items())


@pytest.mark.slow
def test_missing_or_damaged_replay_file_is_reported(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tournament(mixed_config(generations=2), folder).run()
    (folder / "replay" / "0000-1.safetensors").unlink()
    run = RunDirectory.open(folder)
    with pytest.raises(RunError, match="lacks the replay items of assignment 0"):
        join_segments(load_segments(run, 1, 1), 64)
    (folder / "replay" / "0001-1.safetensors").write_bytes(b"not tensors")
    with pytest.raises(RunError, match="is damaged: not a safetensors file"):
        load_segments(run, 1, 1)


@pytest.mark.slow
def test_a_wall_clock_limit_is_shared_by_the_cohorts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that advances by a second at each reading, the first cohort must not use all of the limit."""
    readings = itertools.count()
    clock = types.SimpleNamespace(perf_counter=lambda: float(next(readings)))
    monkeypatch.setattr(cohort_module, "time", clock)
    config = mixed_config(generations=1, samples_per_generation=10_000 * SAMPLES, seconds=180.0)
    outcome = tournament(config, tmp_path / "run", clock=clock.perf_counter).run()
    seconds = {"ppo": 64, "sac": 8, "ddpg": 8}  # samples of an iteration
    iterations = [
        entry.samples / seconds[config.agent_of(entry.slot).algorithm] for entry in outcome.leaderboard.scores
    ]
    assert len(iterations) == 5
    assert max(iterations) <= 1.2 * min(iterations) + 1


def test_fewer_pods_than_cohorts_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tournament.pods must be at least 3, one per cohort .*, got 2"):
        tournament(small_config(pods=2, cohorts=(SAC, DDPG)), tmp_path)


def test_slots_are_assigned_to_configured_cohorts() -> None:
    config = parse(
        {"agent": {"clip_range": 0.1}, "cohorts": [{"algorithm": "sac", "critics": 3}, {"algorithm": "td3"}]}
    )
    assert [config.agent_of(slot).algorithm for slot in range(4)] == ["ppo", "sac", "td3", "ppo"]
    assert config.cohorts[0] == SACConfig(critics=3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"agent": {"algorithm": "sac", "clip_range": 0.1}},
            "unknown key agent.clip_range; it is a setting of ppo, and sac has no",
        ),
        (
            {"agent": {"critics": 3}},
            "unknown key agent.critics; it is a setting of ddpg, td3, sac, redq, and ppo has no",
        ),
        ({"agent": {"algorithm": "sac", "critcs": 3}}, "unknown key agent.critcs; did you mean critics?"),
        ({"cohorts": [{"algorithm": "sax"}]}, "cohorts.0.algorithm: there is no algorithm 'sax'; did you mean sac?"),
        ({"cohorts": [{"algorithm": "td3", "critics": "x"}]}, "cohorts.0.critics must be a whole number, got 'x'"),
        ({"agent": 3}, "agent must be a table of settings, got 3"),
    ],
)
def test_settings_of_other_algorithms_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(values)
    assert message in str(caught.value)
