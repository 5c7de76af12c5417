"""A run on disk: config, snapshots, leaderboard, metrics, replay buffers. It always holds whole generations.

config.json            every setting, with the hashes of config and data
state.json             the last finished generation; renamed into place after all it speaks of was written
snapshots/ID.json + ID.safetensors
replay/0003-1.safetensors  what the slots of cohort 1 saw in generation 3, of algorithms that learn from a replay
metrics/0003.json      learning curves of a generation: {"slots": [...], "rows": [{"samples": ..., name: [P]}]}, and its
                       agents with their scores, parents and settings: {"agents": [...]}
tensorboard/           the same for TensorBoard, a run a slot
report.json report.html  written by the application

A segment holds what the slots saw in its generation and is never changed. A generation starts from the segments of
those before it, whether the run was interrupted or not.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from finrl_pod import __version__
from finrl_pod.errors import RunError
from finrl_pod.files import read_json, write_json
from finrl_pod.settings.run import RunConfig, check_current, parse
from finrl_pod.tournament import snapshots, tensorboard_log
from finrl_pod.tournament import snapshots as tensor_file
from finrl_pod.types import AgentSnapshot, Tensor

STATE: Mapping[str, type | tuple[type, ...]] = {
    "generation": int,
    "leaderboard": list,
    "current": list,
    "parents": dict,
    "samples": int,
    "train_seconds": (int, float),
}
# An agent's file, or the temporary name that one had when its writer was killed.
_SNAPSHOT_FILE = re.compile(r"\.?(?P<id>g\d+s\d+)\.(json|safetensors)(\.\w+)?")


class RunDirectory:
    """One folder for one run of one config on one data set."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # ------------------------------------------------------------------ opening

    @classmethod
    def create(cls, path: Path, config: RunConfig, data_sha256: str) -> RunDirectory:
        """A new run. Raises RunError when the folder holds one already or cannot be written."""
        run = cls(path)
        if run._config_file.exists():
            raise RunError(f"{path} already holds a run; add --resume to go on with it, or choose another --out folder")
        write_json(
            run._config_file,
            {
                "config": dataclasses.asdict(config),
                "config_sha256": config.sha256,
                "data_sha256": data_sha256,
                "version": __version__,
            },
        )
        return run

    @classmethod
    def resume(cls, path: Path, config: RunConfig, data_sha256: str) -> RunDirectory:
        """The run in `path`. Raises RunError when there is none, or when config or data are not its own."""
        run = cls(path)
        if not run._config_file.exists():
            raise RunError(f"there is no run to resume in {path}; start it without --resume")
        check_current({"config": run._fact("config", dict)}, path)
        if run._fact("config_sha256", str) != config.sha256:
            raise RunError(
                f"the run in {path} was made with another config or seed; resume it with the one it began with"
            )
        if run.data_sha256 != data_sha256:
            raise RunError(f"the run in {path} was made on other data; restore that data or start a new run")
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """A finished run, to read. Raises RunError when there is none."""
        run = cls(path)
        if not run._config_file.exists() or not run._state_file.exists():
            raise RunError(f"{path} holds no run with a finished generation; name the folder that --out named")
        check_current({"config": run._fact("config", dict)}, path)
        return run

    # ------------------------------------------------------------------ reading

    @property
    def config(self) -> RunConfig:
        """The run's config."""
        return parse(self._fact("config", dict), f"the config of the run in {self.path}")

    @property
    def data_sha256(self) -> str:
        """Hash of the panel the run was made on."""
        return str(self._fact("data_sha256", str))

    def state(self) -> dict[str, Any] | None:
        """What was saved with the last finished generation, or None before there is one."""
        if not self._state_file.exists():
            return None
        values = read_json(self._state_file)
        for name, kind in STATE.items():
            if not isinstance(values.get(name), kind):
                raise RunError(f"{self._state_file} is damaged at {name}; restore it or start a new run")
        return values

    def snapshot(self, agent: str) -> AgentSnapshot:
        """One saved agent."""
        return snapshots.load(self._snapshots / f"{agent}.json")

    def replay(self, generation: int, cohort: int) -> dict[str, Tensor] | None:
        """What `save_replay` wrote for a cohort's generation, or None."""
        file = self._replay_file(generation, cohort)
        return tensor_file.load_tensors(file) if file.exists() else None

    # ------------------------------------------------------------------ writing

    def save_replay(self, generation: int, cohort: int, items: Mapping[str, Tensor]) -> None:
        """Keep what a cohort's slots saw in a generation, oldest first. Call it before `save_generation`."""
        tensor_file.save_tensors(self._replay_file(generation, cohort), items)

    def forget_replay(self, generation: int, cohort: int) -> None:
        """Remove it: everything in it has left the replay."""
        self._replay_file(generation, cohort).unlink(missing_ok=True)

    def save_generation(
        self,
        generation: int,
        agents: Sequence[AgentSnapshot],
        keep: Collection[str],
        metrics: Mapping[str, Any],
        state: Mapping[str, Any],
    ) -> None:
        """Write a finished generation; state.json comes last and makes it count. Snapshots not in `keep` go."""
        for agent in agents:
            snapshots.save(self._snapshots, agent)
        write_json(self.path / "metrics" / f"{generation:04d}.json", metrics)
        tensorboard_log.write(self.path / "tensorboard", generation, metrics)
        write_json(self._state_file, state)
        for file in self._snapshots.iterdir():
            # Somebody else's file in this folder is none of ours to remove.
            ours = _SNAPSHOT_FILE.fullmatch(file.name)
            if ours and (ours["id"] not in keep or file.name.startswith(".")):
                file.unlink()

    def _fact(self, name: str, kind: type) -> Any:
        value = read_json(self._config_file).get(name)
        if not isinstance(value, kind):
            raise RunError(f"{self._config_file} is damaged: it lacks {name}; restore it or start a new run")
        return value

    def _replay_file(self, generation: int, cohort: int) -> Path:
        return self.path / "replay" / f"{generation:04d}-{cohort}.safetensors"

    @property
    def _config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def _state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def _snapshots(self) -> Path:
        return self.path / "snapshots"


COUNTS = "counts"  # of what was ever written and seen; the segments' tensors are [P, n, ...]


def load_slot_state(
    run: RunDirectory, cohort: int, generation: int, items: int
) -> tuple[dict[str, Tensor], int] | None:
    """The replay as it was after a generation: its last `items` items and counts, and the first generation in it.

    None where nothing was kept. Raises RunError when a segment is missing.
    """
    newest = run.replay(generation, cohort)
    if newest is None:
        return None
    counts = newest.pop(COUNTS)
    wanted, first, parts = min(int(counts[0]), items), generation, [newest]
    while sum(_length(part) for part in parts) < wanted:
        first -= 1
        older = run.replay(first, cohort)
        if older is None:
            raise RunError(f"the run in {run.path} lacks the replay of generation {first}; restore it or start anew")
        older.pop(COUNTS)
        parts.insert(0, older)
    joined = {name: torch.cat([part[name] for part in parts], 1)[:, -wanted:] for name in newest}
    return {COUNTS: counts, **joined}, first


def _length(segment: dict[str, Tensor]) -> int:
    return next(iter(segment.values())).shape[1]
