"""A run on disk: config, snapshots, leaderboard, metrics, replay buffers. It always holds complete generations.

config.json            all settings, with the hashes of config and data
own_files/own@HASH.py  files of the user's own that the config refers to (`finrl_pod.user_files`)
state.json             the last finished generation; replaced atomically after everything it refers to is written
snapshots/ID.json + ID.safetensors
replay/0003-1.safetensors  items that the slots of group 1 collected in generation 3 (off-policy algorithms)
validation/0003.safetensors  validation returns of the agents of generation 3 by id, and of the base portfolio
start.json             of agents that start from the solved policy, which is snapshots/closed_form.json: samples per pod
                       and generation of each cohort. Its returns are in validation/closed_form.safetensors
events.jsonl           what happened and when (`event_log`)
metrics/0003.json      learning curves of a generation: {"slots": [...], "rows": [{"samples": ..., name: [P]}]}, and its
                       agents with their scores, parents and settings: {"agents": [...]}
tensorboard/           the learning curves for TensorBoard, one run per slot
report.json report.html  written by the application

Replay files are never changed after their generation. A generation always starts from those before it, whether the run
was interrupted or not.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from finrl_pod import __version__, user_files
from finrl_pod.errors import RunError
from finrl_pod.files import other_folder, read_json, write_json, write_kept_files
from finrl_pod.settings.run import RunConfig, parse
from finrl_pod.tournament import snapshots, tensorboard_log
from finrl_pod.tournament import snapshots as tensor_file
from finrl_pod.types import AgentSnapshot, Floats, Tensor

MAX_DIFFERENCES = 3  # named settings
STATE: Mapping[str, type | tuple[type, ...]] = {
    "generation": int,
    "leaderboard": list,
    "current": list,
    "parents": dict,
    "samples": int,
    "train_seconds": (int, float),
    "history": dict,
}
START = "closed_form"  # id of the solved policy that agents start from
# An agent's file, or a temporary file left by a killed writer.
_SNAPSHOT_FILE = re.compile(r"\.?(?P<id>g\d+s\d+)\.(json|safetensors)(\.\w+)?")


class RunDirectory:
    """Folder of one run: one config on one data set."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # ------------------------------------------------------------------ opening

    @classmethod
    def check_new(cls, path: Path) -> None:
        """Raises RunError if a folder has a run already."""
        if cls(path)._config_file.exists():
            raise RunError(
                f"{path} already holds a run; choose another folder, or resume it with --resume (in Python resume=True)"
            )

    @classmethod
    def create(cls, path: Path, config: RunConfig, data_sha256: str) -> RunDirectory:
        """Create a run. Raises RunError if the folder has one already or cannot be written."""
        cls.check_new(path)
        run = cls(path)
        write_kept_files(path / user_files.FOLDER, dataclasses.asdict(config))
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
        """The run in `path`, to continue. Raises RunError if there is none, or if config or data differ."""
        run = cls(path)
        if not run._config_file.exists():
            raise RunError(f"there is no run to resume in {path}; start it without --resume")
        user_files.keep_folder(path / user_files.FOLDER)
        if not run.is_of(config):
            differences = _differences(dataclasses.asdict(run.config), dataclasses.asdict(config))
            what = "; ".join(differences[:MAX_DIFFERENCES]) or "the text of a file that it names has changed"
            raise RunError(f"the run in {path} was made with another config or seed: {what}; resume it with its own")
        if run.data_sha256 != data_sha256:
            raise RunError(f"the run in {path} was made on other data; restore that data or start a new run")
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """A run to read. Raises RunError if it has no finished generation."""
        run = cls(path)
        if not cls.is_run(path):
            unfinished = f"{path} holds no run with a finished generation; name the folder given as --out"
            missing = f"there is no folder {path}; name the one that the run was written into"
            raise RunError(other_folder(path) or (unfinished if path.exists() else missing))
        user_files.keep_folder(path / user_files.FOLDER)
        return run

    @classmethod
    def is_run(cls, path: Path) -> bool:
        """Whether a folder has a run with a finished generation."""
        run = cls(path)
        return run._config_file.exists() and run._state_file.exists()

    # ------------------------------------------------------------------ reading

    def is_of(self, config: RunConfig) -> bool:
        """Whether the folder has a run, and it was made with this config."""
        return self._config_file.exists() and self._config_value("config_sha256", str) == config.sha256

    @property
    def config(self) -> RunConfig:
        """The run's config."""
        return parse(self._config_value("config", dict), f"the config of the run in {self.path}")

    @property
    def data_sha256(self) -> str:
        """Hash of the panel the run was made on."""
        return str(self._config_value("data_sha256", str))

    def state(self) -> dict[str, Any] | None:
        """State of the last finished generation, None before the first."""
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

    def agents(self) -> list[dict[str, Any]]:
        """JSON values of the scores of all agents, by assignment; those of repeated assignments may not count."""
        files = sorted((self.path / "metrics").glob("[0-9]*.json"))
        return [row for file in files for row in _metrics(file)["agents"]]

    def validation_returns(self, generations: Collection[int]) -> dict[str, Floats]:
        """Validation returns [T] saved in these generations: by id, the base portfolio's as "base"."""
        files = [self._validation_file(generation) for generation in generations]
        return {name: x.numpy() for file in files for name, x in tensor_file.load_tensors(file).items()}

    def start_returns(self) -> Floats | None:
        """Validation returns [T] of the policy that agents start from; None for a run without one."""
        file = self._validation_file(START)
        return tensor_file.load_tensors(file)[START].numpy() if file.exists() else None

    def start_folds(self) -> dict[str, Any]:
        """What start.json holds: how the number of updates was chosen; empty for a run without it."""
        return read_json(self._start_file) if self._start_file.exists() else {}

    def samples_per_generation(self, config: RunConfig) -> tuple[int, ...]:
        """Environment steps per pod and generation of [agent] and of each cohort."""
        if folds := self.start_folds():
            return tuple(folds["samples_per_generation"])
        return (config.tournament.samples_per_generation,) * (1 + len(config.cohorts))

    def replay(self, generation: int, group: int) -> dict[str, Tensor] | None:
        """Items saved by `save_replay` for a group and generation, or None."""
        file = self._replay_file(generation, group)
        return tensor_file.load_tensors(file) if file.exists() else None

    # ------------------------------------------------------------------ writing

    def save_start(self, start: AgentSnapshot, returns: Floats, folds: Mapping[str, Any]) -> None:
        """Save the policy that agents start from. returns: [T] on validation. folds: what start.json holds."""
        snapshots.save(self._snapshots, dataclasses.replace(start, id=START))
        tensor_file.save_tensors(self._validation_file(START), {START: torch.from_numpy(returns.copy())})
        write_json(self._start_file, folds)

    @property
    def has_start(self) -> bool:
        """Whether the policy that agents start from is saved."""
        return self._start_file.exists()

    def save_validation(self, generation: int, returns: Mapping[str, Floats]) -> None:
        """Add validation returns [T] of a generation's agents by id. Call it before `save_generation`."""
        file = self._validation_file(generation)
        together = {**(self.validation_returns([generation]) if file.exists() else {}), **returns}
        tensor_file.save_tensors(file, {name: torch.from_numpy(x.copy()) for name, x in together.items()})

    def save_replay(self, generation: int, group: int, items: Mapping[str, Tensor]) -> None:
        """Save the items collected by a group in a generation, oldest first. Call it before `save_generation`."""
        tensor_file.save_tensors(self._replay_file(generation, group), items)

    def forget_replay(self, generation: int, group: int) -> None:
        """Remove saved items that the replay buffers no longer hold."""
        self._replay_file(generation, group).unlink(missing_ok=True)

    def save_generation(
        self,
        generation: int,
        agents: Sequence[AgentSnapshot],
        keep: Collection[str],
        metrics: Mapping[str, Any],
        state: Mapping[str, Any],
    ) -> None:
        """Write agents of a generation, or of some of its groups, state.json last. Snapshots not in `keep` are removed.

        metrics: of these agents; those of other groups that are saved already are kept.
        """
        for agent in agents:
            snapshots.save(self._snapshots, agent)
        file = self.path / "metrics" / f"{generation:04d}.json"
        write_json(file, _joined_metrics(_metrics(file), metrics) if file.exists() else metrics)
        tensorboard_log.write(self.path / "tensorboard", generation, metrics)
        write_json(self._state_file, state)
        for file in self._snapshots.iterdir():
            # Remove files of this program only.
            ours = _SNAPSHOT_FILE.fullmatch(file.name)
            if ours and (ours["id"] not in keep or file.name.startswith(".")):
                file.unlink()

    def _config_value(self, name: str, kind: type) -> Any:
        value = read_json(self._config_file).get(name)
        if not isinstance(value, kind):
            raise RunError(f"{self._config_file} is damaged: {name} is missing; restore it or start a new run")
        return value

    def _validation_file(self, generation: int | str) -> Path:
        name = generation if isinstance(generation, str) else f"{generation:04d}"
        return self.path / "validation" / f"{name}.safetensors"

    @property
    def _start_file(self) -> Path:
        return self.path / "start.json"

    def _replay_file(self, generation: int, group: int) -> Path:
        return self.path / "replay" / f"{generation:04d}-{group}.safetensors"

    @property
    def _config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def _state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def _snapshots(self) -> Path:
        return self.path / "snapshots"


def _metrics(file: Path) -> dict[str, Any]:
    """Metrics of a generation. Raises RunError if they are damaged."""
    values = read_json(file)
    if missing := [name for name in ("slots", "rows", "agents") if not isinstance(values.get(name), list)]:
        raise RunError(f"{file} is damaged: {missing[0]} is missing; restore it or start a new run")
    return values


def _joined_metrics(saved: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of a generation with those of further slots; None for pods of other groups."""
    kept = [p for p, slot in enumerate(saved["slots"]) if slot not in new["slots"]]
    old_rows = [{name: [column[p] for p in kept] for name, column in row.items()} for row in saved["rows"]]
    old_rows = [row for row in old_rows if any(x is not None for x in row["samples"])]
    behind, ahead = [None] * len(new["slots"]), [None] * len(kept)
    slots = {saved["slots"][p] for p in kept}
    return {
        "slots": [*(saved["slots"][p] for p in kept), *new["slots"]],
        "rows": [
            *({name: [*column, *behind] for name, column in row.items()} for row in old_rows),
            *({name: [*ahead, *column] for name, column in row.items()} for row in new["rows"]),
        ],
        "agents": [*(row for row in saved["agents"] if row["slot"] in slots), *new["agents"]],
    }


def _differences(saved: Mapping[str, Any], given: Mapping[str, Any], section: str = "") -> list[str]:
    """The settings that differ, such as "tournament.pods is 4 in the run and 8 here"."""
    found: list[str] = []
    for name in dict.fromkeys((*saved, *given)):
        mine, other = saved.get(name), given.get(name)
        texts = [user_files.unpinned(x) if isinstance(x, str) else x for x in (mine, other)]
        if texts[0] == texts[1]:  # pinned names also differ by the text of their file
            continue
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            found += _differences(mine, other, f"{section}{name}.")
        elif all(isinstance(x, bool | int | float | str) for x in (mine, other)):
            found.append(f"{section}{name} is {mine} in the run and {other} here")
        else:
            found.append(f"{section}{name}")
    return found
