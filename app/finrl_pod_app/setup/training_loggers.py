"""Learning curves for other programs: TensorBoard, a local MLflow store, Weights & Biases without a network.

with open_logger("tensorboard", "logs/one", settings={"seed": 7}) as logger:
    fp.train(prices, 500_000, callback=logger.report)

One callback serves all: `TrainingLogger.report` after every iteration of a learner.
"""

from __future__ import annotations

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from finrl_pod.errors import InputError
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.training.learner import Learner
from finrl_pod.tournament.tensorboard_log import EventFile

Setting = bool | int | float | str | tuple[int, ...] | None  # of a run
PROJECT = "finrl_pod"  # experiment of MLflow, project of Weights & Biases
MAX_PARAMETERS = 100  # of one request to MLflow


class TrainingLogger(AbstractContextManager["TrainingLogger"]):
    """Where learning curves go. A context manager: `close` at its end."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record finite values by name. step: environment steps so far."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""

    def report(self, learner: Learner, metrics: Metrics) -> None:
        """The callback of a learner: metrics of each member, named member0/NAME if there are several."""
        members = learner.env.members
        for p in range(members):
            prefix = "" if members == 1 else f"member{p}/"
            values = {f"{prefix}{name}": float(column[p]) for name, column in metrics.items()}
            self.log(learner.samples[p], {name: x for name, x in values.items() if math.isfinite(x)})

    def __exit__(self, *_: object) -> None:
        self.close()


class TensorBoardLogger(TrainingLogger):
    """Event files in a folder; `tensorboard --logdir FOLDER` shows them. Writing needs no package."""

    def __init__(self, folder: Path, settings: Mapping[str, Setting]) -> None:  # noqa: ARG002  scalars only
        self._file = EventFile(folder)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._file.append(step, values)

    def close(self) -> None:
        self._file.close()


class MLflowLogger(TrainingLogger):
    """A run in FOLDER/mlflow.db; `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db` shows it."""

    def __init__(self, folder: Path, settings: Mapping[str, Setting]) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)  # they report every table that they create
        folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder.resolve() / 'mlflow.db'}")
        if (known_experiment := self._client.get_experiment_by_name(PROJECT)) is not None:
            experiment = known_experiment.experiment_id
        else:
            experiment = self._client.create_experiment(PROJECT, (folder.resolve() / "artifacts").as_uri())
        self._run = self._client.create_run(experiment).info.run_id
        self._metric = Metric
        parameters = [Param(name, str(value)) for name, value in settings.items()]
        for i in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self._run, params=parameters[i : i + MAX_PARAMETERS])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._run, [self._metric(name, value, now, step) for name, value in values.items()])

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandbLogger(TrainingLogger):
    """An offline run in FOLDER/wandb; `wandb sync` uploads it if you want. Nothing is sent."""

    def __init__(self, folder: Path, settings: Mapping[str, Setting]) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True)
        self._run = wandb.init(project=PROJECT, dir=str(folder), mode="offline", config=dict(settings), settings=quiet)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


LOGGERS: Mapping[str, type[TensorBoardLogger | MLflowLogger | WandbLogger]] = {
    "tensorboard": TensorBoardLogger,
    "mlflow": MLflowLogger,
    "wandb": WandbLogger,
}


def open_logger(kind: str, folder: str | Path, settings: Mapping[str, Setting] | None = None) -> TrainingLogger:
    """A logger that writes into a folder. kind: "tensorboard", "mlflow" or "wandb". settings: run settings by name.

    Raises InputError for an unknown kind, ModuleNotFoundError without the package of the kind.
    """
    if kind not in LOGGERS:
        raise InputError(f"a logger must be one of {', '.join(LOGGERS)}, got {kind!r}")
    return LOGGERS[kind](Path(folder), settings or {})
