"""Folder of a run: config.json, checkpoints while training, weights and result at the end.

Replay items are saved in segments, each written once. state.json is replaced atomically last and lists the files that
belong together, so a kill at any moment leaves the previous checkpoint intact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from finrl_pod.errors import RunError
from finrl_pod.files import read_json, write_bytes, write_json, write_kept_files
from finrl_pod.tournament.snapshots import decode_tensors
from finrl_pod.types import Tensor
from finrl_pod.user_files import FOLDER, keep_folder

CONFIG = "config.json"
STATE = "state.json"
RESULT = "result.json"
WEIGHTS = "weights.safetensors"
SLOT = "slot."
COUNTS = "slot.counts"


class RunFolder:
    """written: replay items ever saved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.item_count = 0
        self._segments: list[dict[str, Any]] = []
        self._saves = 0

    def create(self, config: Mapping[str, Any]) -> None:
        """Start a new run. Raises RunError if the folder has one already."""
        if (self.path / CONFIG).exists():
            raise RunError(f"{self.path} already holds a run; add --resume to continue it, or name another folder")
        write_kept_files(self.path / FOLDER, config)
        write_json(self.path / CONFIG, config)

    def config(self) -> dict[str, Any]:
        """Contents of config.json. Raises RunError if there is no run."""
        if not (self.path / CONFIG).exists():
            raise RunError(f"{self.path} has no run to resume; omit --resume to start one")
        values = read_json(self.path / CONFIG)
        keep_folder(self.path / FOLDER)
        return values

    def result(self) -> dict[str, Any] | None:
        """Result of a finished run, else None."""
        return read_json(self.path / RESULT) if (self.path / RESULT).exists() else None

    def save(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], capacity: int) -> None:
        """Save a checkpoint. tensors: with the replay items since `written`; values: added to state.json."""
        from safetensors.torch import save as to_bytes

        self._saves += 1
        items = {k: x.contiguous() for k, x in tensors.items() if k.startswith(SLOT) and k != COUNTS}
        learner_tensors = {k: x.contiguous() for k, x in tensors.items() if k not in items}
        item_count = int(tensors[COUNTS][0]) if COUNTS in tensors else 0
        if items and item_count > self.item_count:
            name = f"replay-{self._saves:06d}.safetensors"
            write_bytes(self.path / name, to_bytes(items))
            self._segments.append({"file": name, "from": self.item_count, "to": item_count})
        self._segments = [segment for segment in self._segments if segment["to"] > item_count - capacity]
        name = f"learner-{self._saves:06d}.safetensors"
        write_bytes(self.path / name, to_bytes(learner_tensors))
        state = {**values, "learner": name, "segments": self._segments, "saves": self._saves, "written": item_count}
        write_json(self.path / STATE, state)
        self.item_count = item_count
        self._delete_old_files({name, *(segment["file"] for segment in self._segments)})

    def load(self, capacity: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Last checkpoint: all tensors, and the values of state.json. None if nothing was saved yet."""
        if not (self.path / STATE).exists():
            return None
        state = read_json(self.path / STATE)
        tensors = self._read(state["learner"])
        self.item_count = state["written"]
        self._segments = list(state["segments"])
        self._saves = state["saves"]
        segments = [self._read(segment["file"]) for segment in self._segments]
        if segments:
            count = min(self.item_count, capacity)
            tensors |= {name: torch.cat([segment[name] for segment in segments], 1)[:, -count:] for name in segments[0]}
        return tensors, state

    def finish(self, weights: Mapping[str, Tensor], result: Mapping[str, Any]) -> None:
        """Save weights and result, and remove the checkpoint."""
        from safetensors.torch import save as to_bytes

        write_bytes(self.path / WEIGHTS, to_bytes({name: x.contiguous() for name, x in weights.items()}))
        write_json(self.path / RESULT, result)
        with contextlib.suppress(FileNotFoundError):
            (self.path / STATE).unlink()
        self._delete_old_files(set())

    def _read(self, name: str) -> dict[str, Tensor]:
        from safetensors import SafetensorError

        try:
            return decode_tensors((self.path / name).read_bytes())
        except (OSError, SafetensorError):
            raise RunError(f"{self.path / name} is missing or damaged; start a new run in another folder") from None

    def _delete_old_files(self, keep: set[str]) -> None:
        """Delete the files of earlier checkpoints."""
        for kind in ("replay", "learner"):
            for path in self.path.glob(f"{kind}-*.safetensors"):
                if path.name not in keep:
                    path.unlink(missing_ok=True)
