"""Trained agents outside of training: loading, `evaluate`, `play`, and what other commands say of their folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_app.environment_training import saved_agents
from finrl_pod_app.environment_training.config import TrainingConfig, agent_config
from finrl_pod_app.environment_training.saved_agents import load_agents
from finrl_pod_app.environment_training.training import train
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from PIL import Image
from safetensors.torch import load_file, save_file

from finrl_pod.errors import RunError
from finrl_pod.rl.training.learner import Learner
from tests.app.environment_training.drawn_env import LIMIT, NAME

CARTPOLE = "gym:CartPole-v1"


def trained(out: Path, algorithm: str, env: str, *settings: str, members: int = 2) -> Path:
    """Train for two iterations."""
    agent = agent_config(algorithm, ("hidden=[8]", *settings), steps=64, envs=2)
    train(TrainingConfig(env, agent, steps=64, envs=2, members=members, seed=5), out, evaluation=3)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        ("ppo", CARTPOLE, ("horizon=16", "minibatches=2", "normalise=true")),
        ("a2c", NAME, ("horizon=16",)),
        ("sac", NAME, ("batch_size=8", "learning_starts=8")),
        ("td3", NAME, ("batch_size=8", "learning_starts=8")),
        ("d3qn", CARTPOLE, ("batch_size=8", "learning_starts=8")),
    ],
)
def test_loaded_agents_act_and_score_as_in_training(
    algorithm: str, env: str, settings: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained(tmp_path / "run", algorithm, env, *settings)
    agents = load_agents(folder)
    rows = torch.randn(2, 7, agents.spec.features, generator=torch.Generator().manual_seed(1))
    action = agents.act(rows)
    pool = GymnasiumVecEnv(env, envs=7, members=(0, 1))
    learner = Learner(pool, agents.config.agent, seed=1)
    for p in range(2):
        learner.algorithm.load_member(
            p, {name: x[p] for name, x in agents.weights.items()}, learner.algorithm.member(p)[1]
        )
    torch.testing.assert_close(action, learner.act(rows), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(agents.member(1).act(rows[1:]), action[1:])
    assert run(["evaluate", str(folder), "--episodes", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = json.loads((folder / "result.json").read_text())["evaluation"]
    assert {name: found[name] for name in expected} == expected
    assert run(["evaluate", str(folder), "--episodes", "2", "--seed", "9"]) == 0
    assert f"{algorithm} on {env}, seed 9, 2 episodes each." in capsys.readouterr().out


def test_play_shows_text_or_writes_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path / "run", "a2c", NAME, "horizon=16")
    assert run(["play", str(folder), "--episodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        *[f"at {i}" for i in range(LIMIT + 1)] * 2,
        *[f"episode {i}: return 5.0 in 5 steps" for i in (0, 1)],
    ]
    picture = tmp_path / "play.png"
    assert run(["play", str(folder), "--member", "1", "--out", str(picture), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == [{"return": 5.0, "steps": 5, "ended": True}]
    with Image.open(picture) as image:
        assert (image.n_frames, image.size) == (LIMIT + 1, (8, 6))
        for i in range(image.n_frames):
            image.seek(i)
            assert np.asarray(image.convert("RGB"))[2, 3].tolist() == [10 * i] * 3


def test_played_episode_without_an_end_is_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained(tmp_path / "run", "a2c", NAME, "horizon=16")
    monkeypatch.setattr(saved_agents, "MAX_STEPS", 3)
    assert run(["play", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*[f"at {i}" for i in range(4)], "episode 0: return 3.0 in 3 steps, cut off before its end"]
    monkeypatch.setattr(saved_agents, "MAX_FRAMES", 5)
    picture = tmp_path / "play.png"
    assert run(["play", str(folder), "--out", str(picture), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == [{"return": 4.0, "steps": 4, "ended": False}]
    with Image.open(picture) as image:
        assert image.n_frames == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["backtest", "{run}"], "is a run of train --env on gym:CartPole-v1, without prices; test its agents with"),
        (["audit", "{run}"], "without prices; test its agents with finrl-pod evaluate"),
        (["promote", "{run}"], "or watch them with finrl-pod play"),
        (["promote", "{run}/config.json"], "config.json is a file; name the folder of a run, the one given as --out"),
        (["evaluate", "nowhere"], "there is no folder nowhere; name the folder given as --out"),
        (["evaluate", "{run}/config.json"], "is a file; name the folder of a run"),
        (["play", "{run}", "--member", "7"], "the run has the members 0 to 1, got 7"),
        (["play", "{run}", "--out", "x.gif"], "--out must end in .png, an animated picture, got x.gif"),
    ],
)
def test_other_folders_are_named(
    run_folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([argument.format(run=run_folder) for argument in arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "cart", "a2c", CARTPOLE, "horizon=16")


def test_unfinished_and_damaged_runs_are_refused(tmp_path: Path, run_folder: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_text((run_folder / "config.json").read_text())
    with pytest.raises(RunError, match="is not finished; continue it"):
        load_agents(copy)
    weights = load_file(run_folder / "weights.safetensors")
    cut = {name: x[:, :3].contiguous() if x.dim() == 2 else x for name, x in weights.items()}
    save_file(cut, copy / "weights.safetensors")
    with pytest.raises(RunError, match=r"do not fit gym:CartPole-v1 with 4 observations and 2 actions"):
        load_agents(copy)
