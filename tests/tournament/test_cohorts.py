"""Pods of several algorithms on one leaderboard, and what their slots keep: replays on disk, interrupted or not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.settings.algorithm_configs import DDPGConfig, SACConfig
from finrl_pod.settings.run import RunConfig, parse
from finrl_pod.tournament import run_directory
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Positions, Window
from tests.tournament.tiny import SAMPLES, tiny_config, tiny_market, tournament

# 64 samples an iteration of PPO, 128 a generation: 16 steps of 8 environments. The replay holds two generations.
OFF: dict[str, Any] = {"hidden": (4, 4), "batch_size": 16, "learning_starts": 32, "buffer_size": 256}
SAC, DDPG = SACConfig(**OFF), DDPGConfig(**{**OFF, "buffer_size": 40})


def mixed(**changes: Any) -> RunConfig:
    return tiny_config(pods=5, cohorts=(SAC, DDPG), leaderboard=6, **changes)


def state(folder: Path) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((folder / "state.json").read_text())
    saved.pop("train_seconds")
    return saved


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cohorts") / "run"
    tournament(mixed(), folder).run()
    return folder


def test_pods_are_dealt_out_and_ranked_on_one_leaderboard(finished: Path) -> None:
    saved, run = state(finished), RunDirectory.open(finished)
    assert [score["slot"] for score in saved["current"]] == [0, 1, 2, 3, 4]
    algorithms = [run.snapshot(score["id"]).spec["algorithm"] for score in saved["current"]]
    assert algorithms == ["ppo", "sac", "ddpg", "ppo", "sac"]
    ranked = [score["score"] for score in saved["leaderboard"]]
    assert ranked == sorted(ranked, reverse=True)
    assert {algorithms[score["slot"]] for score in saved["leaderboard"]} >= {"ppo", "sac"}
    assert saved["samples"] == 5 * 3 * 2 * SAMPLES


def test_agents_inherit_from_their_own_cohort(finished: Path) -> None:
    slot = {agent: int(agent.split("s")[1]) for agent in state(finished)["parents"]}
    born = [(a, b) for a, b in state(finished)["parents"].items() if b is not None]
    assert any(slot[a] != slot[b] for a, b in born), "somebody should have inherited"
    assert all(slot[a] % 3 == slot[b] % 3 for a, b in born)


def test_learning_curves_keep_each_cohorts_own_figures(finished: Path) -> None:
    curves = json.loads((finished / "metrics" / "0001.json").read_text())
    assert curves["slots"] == [0, 3, 1, 4, 2]
    for row in curves["rows"]:
        assert all(len(column) == 5 for column in row.values())
        there = [i for i, samples in enumerate(row["samples"]) if samples is not None]
        assert there in ([0, 1], [2, 3], [4])
        assert ("clip_fraction" in row) is (there == [0, 1])
        assert ("temperature" in row) is (there == [2, 3])


def test_a_champion_may_mix_algorithms(finished: Path) -> None:
    run, market = RunDirectory.open(finished), tiny_market()
    agents = [run.snapshot(score["id"]) for score in state(finished)["current"]]
    champion = PolicyStrategy(agents)
    assert [family.members for family in champion.groups] == [[0, 3], [1, 4], [2]]
    features = market.raw_features[120].double().numpy()
    close = market.close[120:121].numpy()
    window = Window(market.times[120:121], market.symbols, close, np.ones((1, 3), bool), features=features)
    held = Positions(np.array([0.2, 0.1, 0.3]), 0.4, 1e6)
    each = np.array([PolicyStrategy([agent]).target_weights(window, held) for agent in agents])
    np.testing.assert_allclose(champion.target_weights(window, held), each.mean(0), rtol=1e-5)
    assert np.ptp(each, axis=0).max() > 1e-3


def test_slots_keep_their_replay_from_generation_to_generation(finished: Path) -> None:
    run = RunDirectory.open(finished)
    found = run_directory.load_slot_state(run, 1, 2, 256 // 4)
    assert found is not None
    kept, first = found
    assert first == 1, "two generations fill the replay"
    assert kept["day"].shape == (2, 64)
    assert int(kept["counts"][0]) == 3 * 32, "items of groups of four accounts"
    one, two = (run.replay(generation, 1) for generation in (1, 2))
    assert one is not None
    assert two is not None
    assert torch.equal(kept["reward"], torch.cat([one["reward"], two["reward"]], 1))
    assert run.replay(0, 2) is None, "the small replay had forgotten it before the last generation began"
    assert run.replay(1, 2) is not None
    assert run.replay(2, 0) is None, "PPO keeps nothing"


class Crash(BaseException):
    """The machine goes off."""


@pytest.mark.parametrize("point", [9, 26, 45])
def test_a_run_cut_off_anywhere_ends_as_one_that_was_not(
    point: int, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, count = os.replace, 0

    def deadly(source: Any, target: Any) -> None:
        nonlocal count
        count += 1
        if count == point:
            raise Crash
        replace(source, target)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", deadly)
        try:
            tournament(mixed(), folder).run()
        except Crash:
            pass
        else:
            raise AssertionError("the run should have been cut off")
    tournament(mixed(), folder, resume=(folder / "config.json").exists()).run()
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


def test_a_lost_replay_is_named(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tournament(mixed(generations=2), folder).run()
    (folder / "replay" / "0000-1.safetensors").unlink()
    run = RunDirectory.open(folder)
    with pytest.raises(RunError, match="lacks the replay items of generation 0"):
        run_directory.load_slot_state(run, 1, 1, 64)
    (folder / "replay" / "0001-1.safetensors").write_bytes(b"not tensors")
    with pytest.raises(RunError, match="is damaged: not a safetensors file"):
        run_directory.load_slot_state(run, 1, 1, 64)


def test_fewer_pods_than_cohorts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tournament.pods must be at least 3, one per cohort .*, got 2"):
        tournament(tiny_config(pods=2, cohorts=(SAC, DDPG)), tmp_path)


def test_a_config_names_cohorts() -> None:
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
        ({"cohorts": [{"algorithm": "td3", "critics": "x"}]}, "cohorts.0.critics: Input should be a valid integer"),
        ({"agent": 3}, "agent must be a table of settings, got 3"),
    ],
)
def test_a_setting_that_an_algorithm_does_not_have_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(values)
    assert message in str(refused.value)
