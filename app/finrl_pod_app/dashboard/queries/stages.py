"""The stages of a training: which one runs, and how far the run is as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stage:
    """A stage of a run. words: one of them begins its text in the progress file. end: share of the run at its end.

    The shares are typical of runs of some minutes; only that of the training is known while it runs.
    """

    label: str
    words: tuple[str, ...]
    end: float


STAGES = (
    Stage("Prices and features", ("reading",), 0.04),
    Stage("Compiling kernels", (), 0.08),
    Stage("Training", ("training", "generation"), 0.75),
    Stage("Validating", ("validating",), 0.82),
    Stage("Auditing", ("auditing",), 0.90),
    Stage("Testing", ("testing",), 0.97),
    Stage("Report", ("writing",), 1.0),
)
_COMPILING, _TRAINING = 1, 2


@dataclass(frozen=True)
class Position:
    """Where a run is. stage: place in `STAGES`. share: of the whole run, 0 to 1."""

    stage: int
    share: float


def position(progress: Mapping[str, Any]) -> Position:
    """The position of a run, from the fields of its last `Progress`; the first stage without any.

    Before the first sample of a training its kernels are compiled.
    """
    text = str(progress.get("stage") or "").lower()
    samples, total = (max(float(progress.get(key) or 0), 0.0) for key in ("samples", "total_samples"))
    place = next((i for i, stage in enumerate(STAGES) if any(word in text for word in stage.words)), _TRAINING)
    if not text:
        place = 0
    if place == _TRAINING and not samples:
        place = _COMPILING
    start = STAGES[place - 1].end if place else 0.0
    done = min(samples / total, 1.0) if place == _TRAINING and total else 0.0
    return Position(place, start + done * (STAGES[place].end - start))
