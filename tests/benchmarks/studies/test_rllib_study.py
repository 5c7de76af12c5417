"""The comparison with RLlib: equal settings and accounts, scores, rows, and an interpreter without RLlib."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_envs.gym import GymVectorEnv

from benchmarks.harness.rows import read
from benchmarks.studies.rllib_cases import MARKET, PENDULUM, SETTINGS, Case, Outcome, leaky_market, market_score
from benchmarks.studies.rllib_study import (
    BUDGETS,
    OURS,
    THEIRS,
    Peer,
    RLlibSettings,
    VectorAccounts,
    our_config,
    rllib_rows,
    rows_of,
)
from finrl_pod.errors import SetupError
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

RESULT = Outcome(seconds=2.0, cpu_seconds=1.0, steps=8, score=0.5, versions={"ray": "2.60.0"})


def interpreter(path: Path, text: str) -> str:
    """A program in place of the interpreter with RLlib; returns its path."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_minibatches_have_the_size_of_the_protocol() -> None:
    for settings in SETTINGS.values():
        config = our_config(settings)
        assert config.horizon * settings.envs / config.minibatches == settings.minibatch_size


def test_accounts_are_those_of_the_vector_environment() -> None:
    market, config = random_market(), EnvironmentConfig(window=3)
    accounts, env = (GymVectorEnv(market, config, envs=2) for _ in range(2))
    member = VectorAccounts(accounts)
    rows, _ = env.reset(seed=5)
    np.testing.assert_array_equal(member.reset(5)[0].numpy(), rows)
    action = np.linspace(-1, 1, 2 * member.action_size, dtype=np.float32).reshape(2, -1)
    for step in range(3):
        outcome = member.step(torch.from_numpy(action).unsqueeze(0))
        rows, reward, terminated, truncated, step_info = env.step(action)
        np.testing.assert_array_equal(outcome.observation[0].numpy(), rows)
        np.testing.assert_array_equal(outcome.reward[0].numpy(), reward.astype(np.float32))
        np.testing.assert_array_equal(outcome.truncated[0].numpy(), truncated)
        assert truncated.all() == (step == 2)
        assert not terminated.any()
        final = np.stack([*step_info["final_obs"]]) if step == 2 else rows
        np.testing.assert_array_equal(outcome.final_observation[0].numpy(), final)


@pytest.mark.slow
def test_reading_the_leak_earns_nearly_all_of_the_oracle() -> None:
    market, _, _ = leaky_market()
    assets, features = market.shape[1:]

    def act(row: np.ndarray) -> np.ndarray:
        leak = row[1 + assets :].reshape(assets, features)[:, -1]
        action = -np.ones(1 + assets, np.float32)
        action[1 + leak.argmax()] = 1
        return action

    assert 0.9 < market_score(act) < 1.01


def test_finished_trainings_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.studies.rllib_study.train_ours", lambda _: RESULT)
    peer = interpreter(tmp_path / "peer", f"while read case; do echo '{json.dumps(asdict(RESULT))}'; done")
    settings = RLlibSettings(seeds=2, peer=peer, results=tmp_path / "rllib.jsonl")
    rows = rllib_rows(settings)
    records = read(settings.results)
    assert len(records) == 2 * len(SETTINGS) * len(BUDGETS) * 2
    assert {record["side"] for record in records} == {OURS, THEIRS}
    assert {"env", "budget", "limit", "seed", "score", "steps", "commit", "date"} <= set(records[0])
    assert rllib_rows(RLlibSettings(seeds=2, peer="/no/such", results=settings.results)) == rows
    assert read(settings.results) == records


@pytest.mark.parametrize(
    ("text", "message"), [("echo 'No module named ray' >&2; exit 1", "No module named ray"), ("exit 1", "nothing")]
)
def test_an_interpreter_without_rllib_is_an_error_that_says_how_to_make_it(
    tmp_path: Path, text: str, message: str
) -> None:
    for path in (interpreter(tmp_path / "peer", text), str(tmp_path / "missing")):
        peer = Peer(path)
        with pytest.raises(SetupError) as failure:
            peer.train(Case(MARKET, "cpu", 1.0, 0))
        peer.close()
        assert "make rllib" in str(failure.value)
        assert message in str(failure.value) or "missing" in path


def record(env: str, budget: str, side: str, seed: int, score: float) -> dict[str, Any]:
    return {**asdict(RESULT), "env": env, "budget": budget, "side": side, "seed": seed, "score": score}


def test_rows_compare_the_sides_of_each_budget() -> None:
    records = [record(MARKET, "cpu", OURS, seed, 0.5 + seed / 10) for seed in range(3)]
    records += [record(MARKET, "cpu", THEIRS, seed, 0.1 + seed / 10) for seed in range(3)]
    records += [record(PENDULUM, "samples", OURS, 0, -150.0)]  # without the other side
    ours, theirs, difference = rows_of(records)
    assert (ours.value, ours.low, ours.high) == pytest.approx((0.6, 0.5, 0.7))
    assert (theirs.value, theirs.low, theirs.high) == pytest.approx((0.2, 0.1, 0.3))
    assert difference.value == pytest.approx(0.4)
    assert difference.low <= 0.4 <= difference.high
    assert ours.config["seeds"] == 3
    assert ours.config["steps"] == 8
