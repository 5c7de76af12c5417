"""Folder of a run: config.json, checkpoints, weights and result at the end.

Replay items are saved in segments, each written once. checkpoint.json is replaced atomically last and lists the files
that belong together, so a kill at any moment leaves the previous checkpoint intact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import TypeAdapter, ValidationError

from finrl_pod import __version__
from finrl_pod.errors import RunError
from finrl_pod.files import other_folder, read_json, write_json, write_kept_files
from finrl_pod.tournament.snapshots import load_tensors, save_tensors
from finrl_pod.types import Tensor
from finrl_pod.user_files import FOLDER, keep_folder
from finrl_pod_app.environment_training.config import TrainingConfig, config_from_dict
from finrl_pod_app.environment_training.evaluation import EvaluationResult, Scores
from finrl_pod_app.setup.output_folder import JsonRecord

Record = TypeVar("Record")
CONFIG = "config.json"
STATE = "checkpoint.json"
RESULT = "result.json"
WEIGHTS = "weights.safetensors"
SLOT = "slot."
COUNTS = "slot.counts"


@dataclass(frozen=True)
class Segment:
    """A file of replay items. to: number of items saved up to its end."""

    file: str
    to: int


@dataclass(frozen=True)
class Checkpoint(JsonRecord):
    """Contents of checkpoint.json. losses: lost workers. saves: number of this one. written: replay items saved."""

    scores: Scores
    seconds: float
    losses: int
    learner: str
    segments: tuple[Segment, ...]
    saves: int
    written: int


@dataclass(frozen=True)
class PipelineSummary:
    """Statistics of an asynchronous training. ratio: updates per sample. staleness: mean age of the acting weights."""

    ratio: float
    staleness: float
    most_stale: float


@dataclass(frozen=True)
class TrainingResult(JsonRecord):
    """Contents of result.json. score: one for each member. unscored: number of episodes with NaN returns."""

    env: str
    algorithm: str
    seed: int
    steps: int
    updates: int | None
    seconds: float
    samples_per_second: float
    episodes: int
    unscored: int
    score: list[float | None]
    best_score: float | None
    curve: list[tuple[int, float]]
    alive: list[bool]
    workers_lost: int
    weights: str
    evaluation: EvaluationResult | None = None
    pipeline: PipelineSummary | None = None


@dataclass(frozen=True)
class MarketScores:
    """Exact scores of greedy decisions on a built-in market, None where they are undefined.

    Execution: excess_cost over optimum or equilibrium, holdings of the first market [M, N + 1], best_response_gain of
    each agent. Making: share_of_optimum among noise traders, spread, bid and ask of the start at each inventory, and
    the share of time visited at each.
    """

    excess_cost: float | None = None
    holdings: list[list[float]] | None = None
    best_response_gain: list[float] | None = None
    share_of_optimum: float | None = None
    spread: float | None = None
    bid: list[float] | None = None
    ask: list[float] | None = None
    visited: list[float] | None = None


@dataclass(frozen=True)
class MarketResult(MarketScores, TrainingResult):
    """Contents of result.json of a run on a built-in market."""


class RunFolder:
    """The folder of one training run: config, checkpoints, result. item_count: replay items ever saved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.item_count = 0
        self._segments: tuple[Segment, ...] = ()
        self._saves = 0

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run can be continued."""
        return (self.path / STATE).exists()

    def create(self, config: TrainingConfig) -> None:
        """Start a new run. Raises RunError if the folder has one already that has saved anything."""
        if (self.path / CONFIG).exists() and not self._has_saved_nothing():
            raise RunError(f"{self.path} already holds a run; add --resume to continue it, or name another folder")
        self.write_config(config)

    def _has_saved_nothing(self) -> bool:
        """Whether a run of `train --env` failed before it saved anything, so that its folder can be used again."""
        names = {path.name for path in self.path.iterdir()}
        return names <= {CONFIG, FOLDER} and isinstance(read_json(self.path / CONFIG).get("env"), str)

    def write_config(self, config: TrainingConfig) -> None:
        """Write the config, with the files that it names."""
        values = {**config.to_dict(), "version": __version__}
        write_kept_files(self.path / FOLDER, values)
        write_json(self.path / CONFIG, values)

    def config(self) -> TrainingConfig:
        """The config of the run. Raises RunError if there is no run of `train --env`."""
        if not (self.path / CONFIG).exists():
            raise RunError(f"{self.path} has no run to resume; omit --resume to start one")
        values = read_json(self.path / CONFIG)
        if not isinstance(values.get("env"), str):
            on_prices = "is not a run of train --env; a run on prices is tested with finrl-pod backtest"
            raise RunError(other_folder(self.path) or f"{self.path} {on_prices} {self.path}")
        keep_folder(self.path / FOLDER)
        return config_from_dict(values)

    def result(self, kind: type[TrainingResult] = TrainingResult) -> TrainingResult | None:
        """Result of a finished run, else None."""
        return _read_record(self.path / RESULT, kind) if (self.path / RESULT).exists() else None

    def save(self, tensors: Mapping[str, Tensor], scores: Scores, seconds: float, losses: int, capacity: int) -> None:
        """Save a checkpoint. tensors: with the replay items since `item_count`. capacity: items of a replay buffer."""
        self._saves += 1
        items = {name: x for name, x in tensors.items() if name.startswith(SLOT) and name != COUNTS}
        item_count = int(tensors[COUNTS][0]) if COUNTS in tensors else 0
        if items and item_count > self.item_count:
            segment = Segment(f"replay-{self._saves:06d}.safetensors", item_count)
            save_tensors(self.path / segment.file, items)
            self._segments = (*self._segments, segment)
        self._segments = tuple(segment for segment in self._segments if segment.to > item_count - capacity)
        learner = f"learner-{self._saves:06d}.safetensors"
        save_tensors(self.path / learner, {name: x for name, x in tensors.items() if name not in items})
        state = Checkpoint(scores, seconds, losses, learner, self._segments, self._saves, item_count)
        write_json(self.path / STATE, state.to_dict())
        self.item_count = item_count
        self._delete_old_files({learner, *(segment.file for segment in self._segments)})

    def load(self, capacity: int) -> tuple[dict[str, Tensor], Checkpoint] | None:
        """Last checkpoint with all its tensors. None if nothing was saved yet."""
        if not self.has_checkpoint:
            return None
        state = _read_record(self.path / STATE, Checkpoint)
        tensors = load_tensors(self.path / state.learner)
        self.item_count = state.written
        self._segments = state.segments
        self._saves = state.saves
        if segments := [load_tensors(self.path / segment.file) for segment in self._segments]:
            count = min(self.item_count, capacity)
            tensors |= {name: torch.cat([segment[name] for segment in segments], 1)[:, -count:] for name in segments[0]}
        return tensors, state

    def finish(self, weights: Mapping[str, Tensor], result: TrainingResult) -> None:
        """Save weights and result; the checkpoint stays, so that the run can be continued with more steps."""
        save_tensors(self.path / WEIGHTS, weights)
        write_json(self.path / RESULT, result.to_dict())

    def _delete_old_files(self, keep: set[str]) -> None:
        for kind in ("replay", "learner"):
            for path in self.path.glob(f"{kind}-*.safetensors"):
                if path.name not in keep:
                    path.unlink(missing_ok=True)


def _read_record(file: Path, kind: type[Record]) -> Record:
    """Read a record from a JSON file. Raises RunError if it is damaged."""
    try:
        return TypeAdapter(kind).validate_python(read_json(file))
    except ValidationError as error:
        raise RunError(f"{file} is damaged: {error.errors()[0]['msg']}; start a new run in another folder") from None
