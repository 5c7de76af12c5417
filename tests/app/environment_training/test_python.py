"""`fp.train_env` and the agents that it returns."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

import finrl_pod as fp
from finrl_pod.errors import InputError
from tests.app.environment_training.test_train import REACH

SETTINGS = {"hidden": (8,), "horizon": 16, "minibatches": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("reach.py").write_text(REACH.partition("gym.register")[0])
    return tmp_path


@pytest.mark.slow
def test_agents_are_trained_saved_evaluated_and_exported_as_by_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[dict[str, Any]] = []
    terms: dict[str, Any] = {"algorithm": "ppo", "seed": 3, "evaluation": 2, "arguments": {"size": 3}}
    agents = fp.train_env(
        "reach.py:Reach", 64, "run", settings=SETTINGS, callback=lambda _, metrics: seen.append(metrics), **terms
    )
    assert [x["episode_return"].tolist() for x in seen] == [[24.0]] * 4
    assert [x["episode_length"].tolist() for x in seen] == [[8.0]] * 4
    assert (agents.result.score, agents.evaluate(2).mean) == ([24.0], [24.0])
    action = agents.act([[0.0, 0.0]] * 5)
    assert action.shape == (1, 5, 2)
    assert torch.equal(fp.load_env_agents("run").act([[0.0, 0.0]] * 5), action)
    assert [path.name for path in agents.export("out")] == ["agent.pt2", "agent.json"]
    options = [x for name, value in SETTINGS.items() for x in ("--set", f"{name}={json.dumps(value)}")]
    command = ["train", "--env", "reach.py:Reach", "--env-arg", "size=3", "--algorithm", "ppo", "--steps", "64"]
    assert run([*command, *options, "--seed", "3", "--evaluate", "2", "--out", "same", "--json"]) == 0
    weights = {(folder / name / "weights.safetensors").read_bytes() for name in ("run", "same")}
    assert len(weights) == 1
    longer = fp.train_env("reach.py:Reach", 96, "run", algorithm="ppo", seed=3, resume=True)  # with its arguments
    assert longer.result.steps == 96
    threads = threading.Thread(target=fp.train_env, args=("reach.py:Reach", 16, "thread"), kwargs={"algorithm": "ppo"})
    threads.start()
    threads.join()
    assert fp.load_env_agents("thread").result.steps >= 16
    with pytest.raises(InputError, match=r"\[E, 2\], got \[2\]"):
        agents.act([0.0, 0.0])


@pytest.mark.slow
def test_the_example_of_the_documentation_learns(tmp_path: Path) -> None:
    agents = fp.train_env("gym:CartPole-v1", 10_240, tmp_path / "run", algorithm="ppo", seed=1, evaluation=0)
    (mean,) = agents.evaluate(10).mean
    assert mean is not None
    assert mean > 100  # random actions: 20


@pytest.mark.parametrize("env", [dict, lambda: None, 3])
def test_environments_are_named_by_text(env: Any) -> None:
    with pytest.raises(InputError, match="env must be a name"):
        fp.train_env(env, 10, "run")
    with pytest.raises(InputError, match="name must be text"):
        GymnasiumVecEnv(env)


def test_wrong_calls_name_the_right_ones() -> None:
    for name in ("my_env.py:Reach", "gym:CartPole-v1"):
        with pytest.raises(InputError, match=r"fp\.train_env"):
            fp.train(name)
    with pytest.raises(InputError, match="arguments: size"):
        fp.train_env("gym:CartPole-v1", 10, "run", arguments={"size": object()})


def test_no_workers_is_this_process() -> None:
    assert GymnasiumVecEnv("gym:CartPole-v1", workers=0).pids == []
