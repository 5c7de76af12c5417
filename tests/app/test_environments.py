"""Custom environments: `finrl-pod new`, `check` and `train --env FILE.py:CLASS`."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.cli.main import run

from finrl_pod.settings.algorithm_registry import ALGORITHMS

PLAIN = '''
from slow_walk import SlowWalk

class Plain:
    """An environment without a base class, checkpoint() and resume()."""

    observation_size, action_size, action_kind, actions = 2, 1, "direct", 0

    def __init__(self, **arguments):
        self.walk = SlowWalk(**arguments)
        self.members, self.envs, self.member_ids = self.walk.members, self.walk.envs, self.walk.member_ids
        self.device = self.walk.device
        self.reset, self.step = self.walk.reset, self.walk.step
'''
SMALL = ["--steps", "96", "--envs", "4", "--seed", "3", "--evaluate", "2", "--json", "--set", "hidden=[8]"]
WITHOUT_MARKET = [name for name, info in ALGORITHMS.items() if not info.needs_market]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a new environment `SlowWalk`."""
    monkeypatch.chdir(tmp_path)
    assert run(["new", "environment", "SlowWalk"]) == 0
    return tmp_path


def settings(algorithm: str) -> list[str]:
    if ALGORITHMS[algorithm].kind == "off-policy":
        return ["--set", "batch_size=8", "--set", "learning_starts=16", "--set", "gradient_steps=1"]
    return ["--set", "horizon=8"] + (["--set", "epochs=1", "--set", "minibatches=1"] if algorithm == "ppo" else [])


def trained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    code = run(["train", *arguments])
    output = capsys.readouterr()
    assert code == 0, output.err
    document: dict[str, Any] = json.loads(output.out)
    return document


def test_new_environment_keeps_the_contract_and_has_a_test(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["slow_walk.py", "test_slow_walk.py"]
    assert "Drift" not in (folder / "slow_walk.py").read_text()
    capsys.readouterr()
    assert run(["check", "slow_walk.py:SlowWalk", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "target": "slow_walk.py:SlowWalk",
        "kind": "environment",
        "passed": True,
        "faults": [],
    }


def test_test_of_a_new_environment_passes(folder: Path) -> None:
    names = runpy.run_path(str(folder / "test_slow_walk.py"))
    names["test_slow_walk_keeps_its_contract"]()


def test_check_tells_faults_and_exits_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.py").write_text(
        "from slow_walk import SlowWalk\n\nclass Bad(SlowWalk):\n    def step(self, action):\n"
        "        out = super().step(action)\n        return out._replace(reward=out.reward[..., :-1])\n"
    )
    assert run(["check", "bad.py:Bad"]) == 1
    assert "- shape: reward of step 1 has the shape (2, 3)" in capsys.readouterr().out
    assert run(["check", "bad.py:Bad", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert not document["passed"]
    assert [fault["rule"] for fault in document["faults"]] == ["shape"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["new", "environment", "slow-walk"],
            "NAME must have letters, digits and _, such as my_environment",
        ),
        (["new", "environment", "SlowWalk"], "slow_walk.py already exists"),
        (["check", "absent.py:Mine"], "there is no file absent.py"),
        (["check", "slow_walk.py:Absent"], "slow_walk.py has no Absent; it defines SlowWalk"),
        (
            ["train", "--env", "slow_walk"],
            "must be gym:NAME, such as gym:Hopper-v5, path/to/file.py:Class, or package.module:Class",
        ),
        (["train", "--env", "slow_walk.py:SlowWalk", "--workers", "2"], "--workers is only valid with gym:NAME"),
        (["train", "--env", "slow_walk.py:SlowWalk", "--algorithm", "dqn"], "dqn drives discrete actions"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", WITHOUT_MARKET)
def test_every_algorithm_trains(folder: Path, capsys: pytest.CaptureFixture[str], algorithm: str) -> None:
    environment = "slow_walk.py:SlowWalk"
    if ALGORITHMS[algorithm].actions == "discrete":
        (folder / "choices.py").write_text(
            "import torch\nfrom slow_walk import SlowWalk\n\nclass Choices(SlowWalk):\n    action_kind = 'discrete'\n"
            "    actions = 3\n\n    def step(self, action):\n        return super().step(action.float() - 1)\n"
        )
        environment = "choices.py:Choices"
    document = trained(
        capsys, "--env", environment, "--algorithm", algorithm, *SMALL, *settings(algorithm), "--members", "2"
    )
    assert document["alive"] == [True, True]
    assert document["evaluation"]["episodes"] == 2


@pytest.mark.slow
def test_resumed_run_equals_an_uninterrupted_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from finrl_pod_app.environment_training import training

    terms = ["--env", "slow_walk.py:SlowWalk", "--algorithm", "ppo", *SMALL, *settings("ppo")]
    whole = trained(capsys, *terms, "--out", "whole")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # killed after the last checkpoint, before the evaluation
        patch.setattr(training, "evaluate", interrupted)
        assert run(["train", *terms, "--out", "part"]) == 130
    again = trained(capsys, *terms, "--out", "part", "--resume")
    timings = ("seconds", "samples_per_second", "weights")
    assert {k: x for k, x in again.items() if k not in timings} == {k: x for k, x in whole.items() if k not in timings}


def test_environment_without_checkpoint_trains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "plain.py").write_text(PLAIN)
    document = trained(capsys, "--env", "plain.py:Plain", "--algorithm", "ppo", *SMALL, *settings("ppo"))
    assert document["steps"] == 96
