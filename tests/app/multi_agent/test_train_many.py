"""`finrl-pod train --env FILE.py:CLASS --many`: outputs, evaluation, exact continuation, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_app.environment_training.config import TrainingConfig, agent_config
from finrl_pod_app.environment_training.saved_agents import load_agents
from finrl_pod_app.environment_training.training import _TrainingRun, train
from finrl_pod_app.multi_agent.training import MarketTraining, train_market

from finrl_pod.errors import Interrupted
from finrl_pod.rl.multi_agent.training import MultiAgentAlgorithm

PARALLEL = "tests.envs.gymnasium_pool.parallel_envs"
MARKET = """
import torch
from finrl_pod.types import JointObservation, JointStep

class Pair:
    '''Two agents who earn by agreeing; an episode is one step.'''
    agents, observation_size, state_size, action_size, action_kind, actions = 2, 1, 1, 1, "direct", 0
    flags = 2

    def __init__(self, envs, members, device):
        self.envs, self.member_ids, self.members, self.device = envs, members, len(members), device

    def observation(self):
        return JointObservation(torch.ones(self.members, self.envs, 2, 1), torch.ones(self.members, self.envs, 1))

    def reset(self, seed):
        return self.observation()

    def step(self, action):
        gap = -(action[..., 0, 0] - action[..., 1, 0]).abs()
        reward = gap.unsqueeze(-1).expand(*gap.shape, 2)
        over = torch.ones(self.members, self.envs, self.flags, dtype=torch.bool)
        return JointStep(self.observation(), reward, over, torch.zeros_like(over), self.observation())

class Flat(Pair):
    flags = 1
"""
SETTINGS = {"maddpg": ("learning_starts=6", "batch_size=8"), "ppo": ("horizon=6",)}


def config(many: MultiAgentAlgorithm, steps: int, env: str = f"{PARALLEL}:Staggered") -> TrainingConfig:
    name = "maddpg" if many == "maddpg" else "ppo"
    agent = agent_config(name, ("hidden=[4]", *SETTINGS[name]), steps=24, envs=1)
    return TrainingConfig(env, agent, steps=steps, seed=2, many=many)


def train_by_command(capsys: pytest.CaptureFixture[str], out: Path, *arguments: str) -> dict[str, Any]:
    code = run(["train", "--many", "--out", str(out), "--set", "hidden=[4]", "--json", *arguments])
    output = capsys.readouterr()
    assert code == 0, output.err
    document: dict[str, Any] = json.loads(output.out)
    return document


@pytest.mark.parametrize("many", ["ippo", "maddpg"])
def test_more_steps_and_an_interruption_give_the_weights_of_one_run(
    many: MultiAgentAlgorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every agent is a member; a run of 24 steps that was continued to 48 equals one that was stopped after 24."""
    whole = train(config(many, 48), tmp_path / "whole", evaluation=2)
    assert whole.alive == [True] * 3
    assert whole.algorithm == many
    assert whole.evaluation is not None
    assert len(whole.evaluation.mean) == len(whole.score) == 3
    stops = iter([False, False, False, True])
    plain = _TrainingRun.run

    def stopped(self: _TrainingRun, signals: list[int], *arguments: Any) -> Any:
        iterate = self.learner._iterate

        def stop_in_time(rate: Any) -> Any:
            if next(stops, False):
                signals.append(2)
            return iterate(rate)

        monkeypatch.setattr(self.learner, "_iterate", stop_in_time)
        return plain(self, signals, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(_TrainingRun, "run", stopped)
        with pytest.raises(Interrupted):
            train(config(many, 48), tmp_path / "stopped", evaluation=2)
    train(config(many, 48), tmp_path / "stopped", resume=True, evaluation=2)
    train(config(many, 24), tmp_path / "longer", evaluation=0)
    longer = train(config(many, 48), tmp_path / "longer", resume=True, evaluation=2)
    assert (longer.steps, longer.evaluation) == (48, whole.evaluation)
    weights = {(tmp_path / name / "weights.safetensors").read_bytes() for name in ("whole", "stopped", "longer")}
    assert len(weights) == 1  # the learning rate is constant, so that it does not depend on the number of steps
    agents = load_agents(tmp_path / "whole")
    assert agents.act(torch.zeros(3, 5, agents.spec.features)).shape == (3, 5, 1)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ippo", "league"])
def test_interrupted_markets_end_with_the_same_weights(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = MarketTraining("competition", algorithm, samples=960, envs=8, settings=("hidden=[4]", "horizon=10"))
    train_market(training, tmp_path / "whole")

    monkeypatch.setattr("finrl_pod_app.environment_training.training.PROGRESS_SECONDS", 0)
    calls = iter(range(5))

    def stop(_: Any) -> None:
        if next(calls) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # as by a kill: the last save counts
        train_market(training, tmp_path / "killed", save_seconds=0, progress=stop)
    assert (tmp_path / "killed" / "checkpoint.json").exists()
    assert not (tmp_path / "killed" / "result.json").exists()
    result = train_market(training, tmp_path / "killed", resume=True)
    assert result.alive == [True, True]
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_command_trains_evaluates_and_tells_of_agents_that_diverge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    plain = train_by_command(
        capsys,
        tmp_path / "a",
        "--env",
        f"{PARALLEL}:Choices",
        "--steps",
        "48",
        "--set",
        "horizon=6",
        "--env-arg",
        "scale=1",
    )
    assert (plain["algorithm"], plain["alive"]) == ("mappo", [True] * 3)
    assert run(["evaluate", str(tmp_path / "a"), "--episodes", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["mean"]) == 3
    arguments = ("--env", f"{PARALLEL}:NaNRewards", "--algorithm", "ippo", "--steps", "48", "--set", "horizon=6")
    lost = train_by_command(capsys, tmp_path / "b", *arguments)
    assert lost["alive"] == [False, True, True]
    assert [record.args for record in caplog.records] == [("agent", 0, f"{PARALLEL}:NaNRewards")]


def test_markets_of_users_are_trained_in_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pair.py"
    file.write_text(MARKET)
    result = train_by_command(capsys, tmp_path / "run", "--env", f"{file}:Pair", "--steps", "640", "--set", "horizon=4")
    assert result["episodes"] == 640 * 2
    assert result["evaluation"]["mean"][0] == result["evaluation"]["mean"][1] <= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--env", "gym:CartPole-v1"), "--many takes path/to/file.py:Class"),
        (("--env", f"{PARALLEL}:Staggered", "--algorithm", "league"), "one of ippo, mappo, maddpg with --many"),
        (("--env", f"{PARALLEL}:Staggered", "--members", "2"), "--members is of environments with one agent"),
        (("--env", f"{PARALLEL}:Choices", "--algorithm", "maddpg"), "choose ippo or mappo"),
        (("--env", f"{PARALLEL}:Unequal"), "must have observations and actions of one size"),
        (("--market", "desk"), "--many is only valid with --env"),
    ],
)
def test_refusals_are_one_line(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--many", "--out", "unused", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not Path("unused").exists()


def test_one_agent_alone_and_flags_of_another_shape_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "--env", f"{PARALLEL}:Staggered", "--out", str(tmp_path / "a")]) == 2
    assert "add --many" in capsys.readouterr().err
    file = tmp_path / "pair.py"
    file.write_text(MARKET)
    assert run(["train", "--many", "--env", f"{file}:Flat", "--out", str(tmp_path / "b")]) == 2
    assert "terminated of" in capsys.readouterr().err
