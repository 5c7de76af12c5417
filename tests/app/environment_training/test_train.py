"""`finrl-pod train --env`: outputs, exact resumption and input errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium
import psutil
import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_app.environment_training.config import agent_config
from safetensors.torch import load_file

from finrl_pod.errors import Interrupted, RunError
from finrl_pod.settings.algorithm_configs import PPOConfig
from tests.envs.gymnasium_pool.faulty_envs import NAME

pytestmark = pytest.mark.slow

SMALL = ["--set", "hidden=[16]", "--evaluate", "2", "--json"]
REPLAY = ["--set", "batch_size=16", "--set", "learning_starts=20"]


def arguments(out: Path, *more: str, env: str = "gym:Pendulum-v1", steps: int = 120) -> list[str]:
    replay = [] if "ppo" in more else REPLAY
    return ["train", "--env", env, "--steps", str(steps), "--seed", "3", "--out", str(out), *SMALL, *replay, *more]


def start(out: Path, *more: str, **terms: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "finrl_pod_app.cli.main", *arguments(out, *more, **terms)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def result(capsys: pytest.CaptureFixture[str], out: Path, *more: str, **terms: Any) -> dict[str, Any]:
    code = run(arguments(out, *more, **terms))
    output = capsys.readouterr()
    assert code == 0, output.err
    document: dict[str, Any] = json.loads(output.out)
    return document


def without_timings(document: dict[str, Any]) -> dict[str, Any]:
    """Return the result without timings and paths."""
    return {k: x for k, x in document.items() if k not in ("seconds", "samples_per_second", "weights")}


def test_training_writes_weights_config_and_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = result(capsys, tmp_path / "a", "--algorithm", "td3", "--envs", "2", "--members", "2", steps=600)
    assert (document["env"], document["algorithm"], document["steps"]) == ("gym:Pendulum-v1", "td3", 600)
    assert document["episodes"] == 4  # 300 steps per member and environment: one complete episode of 200 steps each
    assert len(document["score"]) == len(document["evaluation"]["mean"]) == 2
    assert document["updates"] == 600 - 20 + 2
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["agent"]["hidden"] == [16]
    assert config["agent"]["gamma"] == 0.99
    weights = load_file(tmp_path / "a" / "weights.safetensors")
    assert weights["1.w0"].shape == (3, 16)
    assert json.loads((tmp_path / "a" / "result.json").read_text()) == document
    kept = {"config.json", "result.json", "weights.safetensors", "checkpoint.json"}  # and the checkpoint that it names
    assert kept < {path.name for path in (tmp_path / "a").iterdir()}


@pytest.mark.parametrize("members", [1, 2])
def test_non_finite_rewards_stop_members_but_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], members: int
) -> None:
    terms = ("--algorithm", "td3", "--members", str(members), "--save-every", "0")
    document = result(capsys, tmp_path / "a", *terms, env=NAME.format("NoNumber"), steps=60)
    assert document["alive"] == [False] * members
    assert document["unscored"] == document["episodes"] > 0
    assert document["score"] == document["evaluation"]["mean"] == [None] * members


def test_failed_evaluation_keeps_the_agent_and_interrupted_one_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, uninterrupted = "finrl_pod_app.environment_training.training.evaluate", result(capsys, tmp_path / "whole")
    for error in (RunError("test error"), Interrupted("stopped")):
        out = tmp_path / type(error).__name__
        with monkeypatch.context() as patch:
            patch.setattr(target, Mock(side_effect=error))
            assert run(arguments(out)) == error.exit_code
        error_output = capsys.readouterr().err
        if isinstance(error, RunError):
            assert f"the trained agent is saved in {out}, but its evaluation failed: test error" in error_output
            assert (out / "weights.safetensors").exists()
            assert json.loads((out / "result.json").read_text())["evaluation"] is None
        else:
            assert "stopped after all 120 steps, during evaluation; all progress is saved" in error_output
            assert without_timings(result(capsys, out, "--resume")) == without_timings(uninterrupted)


def test_default_algorithm_depends_on_the_action_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert result(capsys, tmp_path / "a", env="gym:CartPole-v1")["algorithm"] == "dqn"
    assert result(capsys, tmp_path / "b")["algorithm"] == "sac"


def test_ppo_minibatches_divide_any_number_of_environments() -> None:
    for envs in range(1, 65):
        for given in ([], ["horizon=100"]):
            agent = agent_config("ppo", given, steps=10_000, envs=envs)
            assert isinstance(agent, PPOConfig)
            assert agent.horizon * envs % agent.minibatches == 0
            assert agent.horizon == (100 if given else 2048 // envs)
            assert agent.horizon * envs // agent.minibatches >= 64 or agent.minibatches == 1


def test_workers_and_discrete_actions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terms = ("--algorithm", "d3qn", "--envs", "2")
    in_process = result(capsys, tmp_path / "a", *terms, env="gym:CartPole-v1")
    pool = result(capsys, tmp_path / "b", *terms, "--workers", "2", env="gym:CartPole-v1")
    assert without_timings(in_process) == without_timings(pool)
    one, two = (load_file(tmp_path / x / "weights.safetensors") for x in "ab")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_killed_run_resumes_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL between two saves, after the replay buffer has wrapped around."""
    terms = ("--algorithm", "sac", "--envs", "2", "--set", "buffer_size=64", "--save-every", "0.1")
    uninterrupted = result(capsys, tmp_path / "whole", *terms, steps=300)
    out = tmp_path / "killed"
    with start(out, *terms, "--workers", "2", steps=300) as process:
        deadline = time.monotonic() + 60
        while not _saved(out) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
        process.wait()
    state = json.loads((out / "checkpoint.json").read_text())
    assert state["written"] >= 66
    assert not (out / "result.json").exists()
    resumed = result(capsys, out, *terms, "--resume", steps=300)
    assert without_timings(resumed) == without_timings(uninterrupted)
    one, two = (load_file(tmp_path / x / "weights.safetensors") for x in ("whole", "killed"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert result(capsys, out, *terms, "--resume", steps=300) == resumed, "resuming a finished run returns its result"


def test_asynchronous_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terms = ("--algorithm", "td3", "--pipeline", "async", "--envs", "2")
    document = result(capsys, tmp_path / "a", *terms, "--workers", "2", steps=600)
    assert document["updates"] == 600 - 20
    assert document["pipeline"]["ratio"] == pytest.approx(1, abs=0.1)
    assert document["episodes"] >= 2  # 200 steps each, in two environments
    assert (tmp_path / "a" / "weights.safetensors").exists()
    alive = [
        child.name() for child in psutil.Process().children(recursive=True) if "tracker" not in str(child.cmdline())
    ]
    assert not alive
    assert run(arguments(tmp_path / "a", *terms, "--resume")) == 2
    assert "--resume needs --pipeline sync, got async" in capsys.readouterr().err


def _saved(out: Path) -> bool:
    try:
        return bool(json.loads((out / "checkpoint.json").read_text())["written"] >= 66)
    except (OSError, ValueError):
        return False


def _command(process: psutil.Process) -> list[str]:
    """Return the command line of a process, or [] if it has exited: compiler processes are short-lived."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_sigterm_to_all_pipeline_processes_saves_the_weights(tmp_path: Path) -> None:
    """Service managers and batch systems signal the whole process group."""
    out, more = tmp_path / "run", ("--algorithm", "td3", "--pipeline", "async")
    command = [sys.executable, "-m", "finrl_pod_app.cli.main", *arguments(out, *more, steps=10_000_000)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not (out / "config.json").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(6)  # enough to start collecting and learning
            os.killpg(process.pid, signal.SIGTERM)
            stderr = process.communicate(timeout=60)[1].decode()
        finally:
            process.kill()
    assert process.returncode == 130, stderr
    assert "of 10,000,000 steps are in" in stderr
    assert json.loads((out / "result.json").read_text())["evaluation"] is None
    assert (out / "weights.safetensors").exists()


@pytest.mark.parametrize("whole_group", [True, False])
def test_ctrl_c_saves_and_leaves_no_process_behind(tmp_path: Path, whole_group: bool) -> None:
    """whole_group: send the signal to every process of the group, as a terminal does."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "finrl_pod_app.cli.main", *arguments(out, "--workers", "2", steps=10_000_000)]
    command += ["--save-every", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not (out / "checkpoint.json").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            children = psutil.Process(process.pid).children(recursive=True)
            workers = [child for child in children if "gymnasium_pool.worker import" in " ".join(_command(child))]
            assert len(workers) == 2, [_command(child) for child in children]
            (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
            stderr = process.communicate(timeout=30)[1].decode()
        finally:
            process.kill()
    assert process.returncode == 130
    assert "all progress is saved" in stderr
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    assert not any(worker.is_running() for worker in workers)
    assert json.loads((out / "checkpoint.json").read_text())["written"] > 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--workers", "-1"], "--workers must be 0 or more, got -1"),
        (["--workers", "2", "--envs", "3"], "--workers must divide the 3 environments, got 2"),
        (["--algorithm", "sacc"], "there is no algorithm 'sacc'; did you mean sac?"),
        (["--algorithm", "dqn"], "dqn drives discrete actions and this environment takes continuous ones"),
        (["--set", "batch_size=500"], "agent.batch_size must be at most agent.buffer_size, got 500 and"),
        (["--set", "clip_range=0.1"], "it is a setting of ppo, and sac has no such setting"),
        (["--set", "buffer_size=1000000000000"], "GiB are free; lower it to"),
        (["--set", "batch_size"], "--set takes name=value"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--algorithm", "ppo", "--pipeline", "async"], "--pipeline async needs an off-policy algorithm, got ppo"),
        (["--env", "gym:Nope-v0"], "there is no Gymnasium environment 'Nope-v0'"),
        (["--seed", str(2**63)], "--seed must be at most 9,223,372,036,854,775,807"),
        (["--worker-timeout", "nan"], "--worker-timeout must be more than 0 and at most 86400 s, got nan"),
        (["--save-every", "nan"], "--save-every must be 0 seconds or more, got nan"),
        (["config.toml"], "train takes one of a config file, --env and --market"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert run(arguments(tmp_path / "run", *more)) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert not (tmp_path / "run").exists()


def test_folder_of_a_run_that_saved_nothing_is_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a"
    assert run(arguments(out, env=NAME.format("Broken"))) == 2
    assert [path.name for path in out.iterdir()] == ["config.json"]
    result(capsys, out)


def test_one_iteration_of_more_steps_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    document = result(capsys, tmp_path / "a", "--algorithm", "ppo", "--set", "horizon=150", "--set", "minibatches=1")
    assert document["steps"] == 150
    assert [record.args for record in caplog.records] == [("150", "120")]


def test_run_is_not_overwritten_and_resume_needs_the_same_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(tmp_path / "missing", "--resume")) == 2
    assert "has no run to resume" in capsys.readouterr().err
    result(capsys, tmp_path / "a")
    assert run(arguments(tmp_path / "a")) == 2
    assert "already holds a run; add --resume" in capsys.readouterr().err
    assert run(arguments(tmp_path / "a", "--resume", "--set", "batch_size=8")) == 2
    assert "a run with batch_size 16, got 8" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_missing_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(tmp_path / "run", "--device", "cuda")) == 2
    assert "no CUDA device is available to torch" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_resume_accepts_configs_without_device_and_refuses_another_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = result(capsys, tmp_path / "a")
    config_file = tmp_path / "a" / "config.json"
    config = json.loads(config_file.read_text())
    assert config.pop("device") == "cpu"
    config_file.write_text(json.dumps(config))
    assert result(capsys, tmp_path / "a", "--resume") == finished
    config_file.write_text(json.dumps({**config, "device": "cuda"}))
    assert run(arguments(tmp_path / "a", "--resume")) == 2
    assert "holds a run with device cuda, got cpu" in capsys.readouterr().err


def test_market_run_is_not_resumed_as_a_gymnasium_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"config": {}}')
    assert run(arguments(tmp_path, "--resume")) == 2
    assert f"{tmp_path} is not a run of train --env" in capsys.readouterr().err


def test_gymnasium_options_are_refused_with_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.toml").write_text("")
    assert run(["train", str(tmp_path / "x.toml"), "--workers", "2"]) == 2
    assert "--workers is only valid with --env" in capsys.readouterr().err


REACH = """
import gymnasium as gym, numpy as np

class Reach(gym.Env):
    observation_space, action_space = gym.spaces.Box(-2, 2, (2,), np.float32), gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, size=1.0, render_mode=None):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), self.size, False, self.t >= 8, {}

gym.register("Reach-v0", Reach)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reach.py:Reach", "gym:reach:Reach-v0"])
def test_class_of_gymnasium_with_arguments_trains_from_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reach.py").write_text(REACH)
    gymnasium.registry.pop("Reach-v0", None)  # of the other case
    terms = ["--algorithm", "ppo", "--steps", "64", "--set", "horizon=16", "--evaluate", "2", "--json"]
    assert run(["train", "--env", name, "--env-arg", "size=3", *terms, "--out", "out"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluation"]["mean"] == [24.0]
    assert run(["evaluate", "out", "--episodes", "2", "--json"]) == 0  # the arguments are those of the run
    assert '"mean": [' in capsys.readouterr().out
    assert run(["train", "--env", name, "--env-arg", "sise=3", *terms]) == 2
    assert "sise" in capsys.readouterr().err


def test_run_of_a_file_that_has_changed_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    terms = ["train", "--env", "near.py:Reach", "--algorithm", "ppo", "--set", "horizon=16", "--evaluate", "0"]
    source = REACH.replace('gym.register("Reach-v0", Reach)\n', "")
    Path("near.py").write_text(source)
    assert run([*terms, "--steps", "32", "--out", "out"]) == 0
    Path("near.py").write_text(source + "# changed\n")
    assert run([*terms, "--steps", "64", "--out", "out", "--resume"]) == 2
    assert "near.py:Reach has changed since the run in out began" in capsys.readouterr().err
