"""Learning curves in TensorBoard's files, MLflow's store and an offline run of Weights & Biases."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_app.setup.extension_checks import random_market
from finrl_pod_app.setup.training_loggers import LOGGERS, TrainingLogger, open_logger
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import InputError
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import A2CConfig
from finrl_pod.settings.run import EnvironmentConfig

CURVE = {8: {"reward": 1.5, "loss": -2.0}, 16: {"reward": 2.5}}


class Recorder(TrainingLogger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def log(self, step: int, values: object) -> None:
        self.rows.append((step, dict(values)))  # type: ignore[call-overload]

    def close(self) -> None:
        self.closed = True


def test_report_is_a_callback_of_learners() -> None:
    env = make_env(random_market(), EnvironmentConfig(envs=8, group=4, window=64), members=(0, 1))
    learner = Learner(env, A2CConfig(hidden=(8, 8), horizon=8), seed=1)
    with Recorder() as recorder:
        metrics = learner.learn(2 * learner.iteration_samples, callback=recorder.report)  # type: ignore[arg-type]
    assert recorder.closed
    assert [step for step, _ in recorder.rows] == [64, 64, 128, 128]
    assert recorder.rows[-1][1]["member1/reward"] == pytest.approx(float(metrics["reward"][1]))


def test_values_that_are_not_finite_are_left_out() -> None:
    env = make_env(random_market(), EnvironmentConfig(envs=8, group=4, window=64))
    recorder = Recorder()
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


@pytest.mark.filterwarnings("ignore")  # SQLAlchemy deprecates what MLflow uses
def test_mlflow_keeps_curves_and_settings_in_a_local_store(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    for seed in (1, 2):
        with open_logger("mlflow", tmp_path, {"seed": seed, **{f"s{i}": i for i in range(120)}}) as logger:
            for step, values in CURVE.items():
                logger.log(step, values)
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("finrl_pod").experiment_id])
    assert sorted(run.data.params["seed"] for run in runs) == ["1", "2"]
    assert {(run.info.status, run.data.params["s119"]) for run in runs} == {("FINISHED", "119")}
    history = client.get_metric_history(runs[0].info.run_id, "reward")
    assert [(metric.step, metric.value) for metric in history] == [(8, 1.5), (16, 2.5)]


def test_wandb_writes_an_offline_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    with open_logger("wandb", tmp_path, {"seed": 1}) as logger:
        for step, values in CURVE.items():
            logger.log(step, values)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert file.stat().st_size > 0


def test_unknown_loggers_are_refused() -> None:
    with pytest.raises(InputError, match="must be one of tensorboard, mlflow, wandb, got 'neptune'"):
        open_logger("neptune", "logs")


@pytest.mark.parametrize("kind", [kind for kind in LOGGERS if kind != "tensorboard"])
def test_a_missing_package_is_one_sentence(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == kind]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    arguments = ["train", "--env", "gym:CartPole-v1", "--algorithm", "a2c", "--steps", "64", "--evaluate", "0"]
    assert run([*arguments, "--log", kind, "--out", str(tmp_path / "run")]) == 2
    assert f"this needs {kind}: pip install 'finrl-pod[{kind}]'" in capsys.readouterr().err


def test_train_writes_logs_beside_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--env", "gym:CartPole-v1", "--algorithm", "a2c", "--steps", "64", "--evaluate", "0"]
    assert run([*arguments, "--log", "tensorboard", "--out", str(tmp_path / "run"), "--json"]) == 0
    (file,) = (tmp_path / "run" / "logs" / "tensorboard").iterdir()
    assert b"reward" in file.read_bytes()
    assert run(["train", "mine.toml", "--log", "mlflow"]) == 2
    assert "--log is only valid with --env" in capsys.readouterr().err
