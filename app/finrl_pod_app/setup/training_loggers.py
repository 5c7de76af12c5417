"""Learning curves for TensorBoard, by the callback of a learner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from finrl_pod.arguments import check_arguments
from finrl_pod.errors import InputError
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.training.learner import Learner
from finrl_pod.tournament.tensorboard_log import EventFile

KIND = "tensorboard"


class TrainingLogger(AbstractContextManager["TrainingLogger"]):
    """Event files in a folder; `tensorboard --logdir FOLDER` shows them. A context manager that closes them."""

    def __init__(self, folder: Path) -> None:
        self._file = EventFile(folder)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record finite values by name. step: environment steps so far."""
        self._file.append(step, values)

    def report(self, learner: Learner, metrics: Metrics) -> None:
        """The callback of a learner: metrics of each member, named member0/NAME if there are several."""
        members = learner.env.members
        for p in range(members):
            prefix = "" if members == 1 else f"member{p}/"
            values = {f"{prefix}{name}": float(column[p]) for name, column in metrics.items()}
            self.log(learner.samples[p], {name: x for name, x in values.items() if math.isfinite(x)})

    def __reduce__(self) -> NoReturn:
        """Raises InputError: two copies would write into one file."""
        raise InputError("a logger cannot be copied; open another one with fp.open_logger, for each process one")

    def __exit__(self, *_: object) -> None:
        self._file.close()


@check_arguments
def open_logger(kind: str, folder: str | Path) -> TrainingLogger:
    """A logger that writes into a folder. kind: "tensorboard"; raises InputError for any other."""
    if kind != KIND:
        raise InputError(f"a logger must be of the kind {KIND}, got {kind!r:.80}")
    return TrainingLogger(Path(folder))
