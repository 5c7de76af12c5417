"""Learning curves in TensorBoard files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_app.setup.extension_checks import random_market
from finrl_pod_app.setup.training_loggers import TrainingLogger, open_logger
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import InputError
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import A2CConfig
from finrl_pod.settings.run import EnvironmentConfig

CURVE = {8: {"reward": 1.5, "loss": -2.0}, 16: {"reward": 2.5}}


class Recorder(TrainingLogger):
    """Keeps what is logged."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append((step, dict(values)))


def test_report_is_a_callback_of_learners(tmp_path: Path) -> None:
    env = make_env(random_market(), EnvironmentConfig(envs=8, group=4, window=64), members=(0, 1))
    learner = Learner(env, A2CConfig(hidden=(8, 8), horizon=8), seed=1)
    with Recorder(tmp_path) as recorder:
        metrics = learner.learn(2 * learner.iteration_samples, callback=recorder.report)  # type: ignore[arg-type]
    assert [step for step, _ in recorder.rows] == [64, 64, 128, 128]
    assert recorder.rows[-1][1]["member1/reward"] == pytest.approx(float(metrics["reward"][1]))


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    env = make_env(random_market(), EnvironmentConfig(envs=8, group=4, window=64))
    with Recorder(tmp_path) as recorder:
        recorder.report(Learner(env, A2CConfig()), {"reward": torch.tensor([1.0]), "loss": torch.tensor([torch.nan])})
    assert recorder.rows == [(0, {"reward": 1.0})]


def test_tensorboard_reads_the_curves_of_several_runs(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for shift in (0, 100):
        with open_logger("tensorboard", tmp_path) as logger:
            for step, values in CURVE.items():
                logger.log(step + shift, values)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(e.step, e.value) for e in read.Scalars("reward")] == [(8, 1.5), (16, 2.5), (108, 1.5), (116, 2.5)]
    assert [(e.step, e.value) for e in read.Scalars("loss")] == [(8, -2.0), (108, -2.0)]


def test_unknown_loggers_are_refused() -> None:
    with pytest.raises(InputError, match="tensorboard, got 'neptune'"):
        open_logger("neptune", "logs")


def test_train_writes_logs_beside_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    arguments = ["train", "--env", "gym:CartPole-v1", "--algorithm", "a2c", "--steps", "256", "--evaluate", "1"]
    assert run([*arguments, "--log", "tensorboard", "--out", str(tmp_path / "run"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    read = EventAccumulator(str(tmp_path / "run" / "logs" / "tensorboard"))
    read.Reload()
    assert {"reward", "episode_return"} <= set(read.Tags()["scalars"])
    lengths = [event.value for event in read.Scalars("episode_length")]
    assert lengths == [event.value for event in read.Scalars("episode_return")]  # a reward of 1 for each step
    assert len(lengths) == document["episodes"]
    assert [event.value for event in read.Scalars("evaluation_return")] == document["evaluation"]["mean"]
    assert run(["train", "mine.toml", "--log", "tensorboard"]) == 2
    assert "--log is only valid with --env" in capsys.readouterr().err
