"""`fp.train_env` and the agents that it returns."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_app.environment_training.config import agent_config
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

import finrl_pod as fp
from finrl_pod.errors import ConfigError, InputError
from finrl_pod.settings.toml import OTHER_NAMES
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


@pytest.mark.parametrize(
    ("algorithm", "name", "setting"),
    [("ppo", "n_steps", "horizon"), ("ppo", "batch_size", "minibatches"), ("ppo", "ent_coef", "entropy_coefficient"),
     ("sac", "ent_coef", "temperature"), ("a2c", "net_arch", "hidden"), ("td3", "policy_frequency", "policy_delay")],
)  # fmt: skip
def test_names_of_other_libraries_lead_to_settings(algorithm: str, name: str, setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"agent\.{name}; .*\b{setting}\b"):
        agent_config(algorithm, (f"{name}=4",), steps=64, envs=1)


def test_names_of_other_libraries_are_those_of_the_documentation() -> None:
    page = Path(__file__).parents[3] / "docs" / "from-stable-baselines3-and-cleanrl.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    for name, settings in OTHER_NAMES.items():
        (row,) = (row for row in rows if f"`{name}`" in "|".join(row.split("|")[1:3]))
        assert any(setting in row.split("|")[3] for setting in settings)


FAULTY = """
import gymnasium, numpy as np

class OldReset(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)
    reward = 0.0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32)

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), self.reward, False, self.t >= 10, {}

class NoNumber(OldReset):
    reward = float("nan")

    def reset(self, *, seed=None, options=None):
        return super().reset(), {}

class Broken(NoNumber):
    def step(self, action):
        raise KeyError("broken")
"""


def test_messages_name_what_the_user_wrote(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("faulty.py").write_text(FAULTY)
    terms = ["--algorithm", "ppo", "--steps", "16", "--set", "horizon=16", "--evaluate", "0"]
    for name, words in (
        ("faulty.py:OldReset", "(observation, info)"),
        ("faulty.py:Broken", "faulty.py, line"),
    ):
        assert run(["train", "--env", name, *terms, "--out", name]) == 2
        message = capsys.readouterr().err
        assert words in " ".join(message.split())
        assert "@" not in message
    assert run(["train", "--env", "faulty.py:NoNumber", *terms, "--out", "nan"]) == 0
    assert "No member learned to the end" in capsys.readouterr().out


def test_modules_of_the_folder_are_named_as_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("elsewhere.py").write_text(FAULTY)
    assert run(["train", "--env", "elsewhere:Broken", "--algorithm", "ppo", "--steps", "16", "--out", "run"]) == 2
    assert "elsewhere.py:Broken" in capsys.readouterr().err


@pytest.mark.slow
def test_agents_of_one_market_are_evaluated_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agents = fp.train_env(
        "tests.envs.gymnasium_pool.parallel_envs:Staggered", 16, tmp_path / "run", many=True,
        settings={"hidden": [4], "horizon": 16}, evaluation=0,
    )  # fmt: skip
    assert agents.act(torch.zeros(3, 2, 3)).shape == (3, 2, 1)
    assert run(["evaluate", str(tmp_path / "run"), "--episodes", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["algorithm"], document["agents"]) == ("mappo", ["b", "a", "c"])


@pytest.mark.slow
def test_a_resumed_run_tells_that_its_buffer_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    terms: dict[str, Any] = {"algorithm": "dqn", "evaluation": 0, "settings": {"hidden": [4], "batch_size": 8}}
    fp.train_env("gym:CartPole-v1", 300, tmp_path / "run", **terms)
    fp.train_env("gym:CartPole-v1", 310, tmp_path / "run", resume=True, **terms)
    assert "replay buffer keeps the 300 transitions" in caplog.text
