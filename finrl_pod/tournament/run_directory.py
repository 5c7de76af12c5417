"""A run on disk: config, snapshots, leaderboard, metrics, replay buffers. It always holds complete generations.

Results of a generation that is not complete are saved one by one as they arrive.

config.json                  all settings, with the hashes of config and data
own_files/own@HASH.py        user files and tables that the config refers to (`finrl_pod.user_files`)
state.json                   the last finished generation; replaced after everything it refers to is written
snapshots/ID.json, ID.safetensors
results/0003-1.safetensors   result of group 1 in generation 3, until state.json includes it
replay/0003-1.safetensors    items that the slots of group 1 collected in generation 3 (off-policy algorithms)
validation/0003.safetensors  validation returns of the agents of generation 3 by id, and of the base portfolio
start.json                   samples per pod and generation of each cohort, if agents start from the solved policy
events.jsonl                 what happened and when (`event_log`)
metrics/0003.json            {"slots": [...], "rows": [{"samples": ..., name: [P]}], "agents": [...]}
tensorboard/                 the learning curves for TensorBoard, one run per slot

The solved policy is the snapshot closed_form. Replay files are never changed after their generation. A generation
always starts from those before it, whether the run was interrupted or not.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from finrl_pod import __version__, user_files
from finrl_pod.errors import RunError
from finrl_pod.files import other_folder, read_json, to_plain, write_bytes, write_json, write_kept_files
from finrl_pod.settings.run import RunConfig, TableConfig, parse
from finrl_pod.tournament import snapshots, tensorboard_log
from finrl_pod.tournament.assignment import AssignmentResult, Group
from finrl_pod.tournament.assignment_codec import decode_result, encode_result
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.learning_curves import LearningCurves, read_curves
from finrl_pod.tournament.run_state import RunState, initial_state, read_state
from finrl_pod.types import AgentSnapshot, Floats, Score, Tensor

MAX_DIFFERENCES = 3  # named settings
START = "closed_form"  # id of the solved policy that agents start from
# The file of an agent, or a temporary file left by a killed writer.
_SNAPSHOT_FILE = re.compile(r"\.?(?P<id>g\d+s\d+)\.(json|safetensors)(\.\w+)?")


@dataclass(frozen=True)
class StartFold:
    """Choice of the number of updates for one cohort: information ratios by share of the training budget.

    start: ratio of the solved policies. chosen: share with the highest ratio. Ratios are None if undefined.
    """

    cohort: int
    start: float | None
    shares: tuple[float, ...]
    ratios: tuple[float | None, ...]
    chosen: float


@dataclass(frozen=True)
class StartFolds:
    """Samples per pod and generation of [agent] and of each cohort, and how they were chosen."""

    samples_per_generation: tuple[int, ...] = ()
    folds: tuple[StartFold, ...] = ()


class RunDirectory:
    """Folder of one run: one config on one data set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config_file = path / "config.json"
        self._state_file = path / "state.json"
        self._start_file = path / "start.json"
        self._snapshots = path / "snapshots"

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
        values = dataclasses.asdict(config)
        facts = {"config_sha256": config.sha256, "data_sha256": data_sha256, "version": __version__}
        if config.features.tables:
            facts["folder"] = str(Path.cwd())
        write_kept_files(path / user_files.FOLDER, values)
        write_json(run._config_file, {"config": values, **facts})
        return run

    @classmethod
    def resume(cls, path: Path, config: RunConfig, data_sha256: str) -> RunDirectory:
        """The run in `path`, to continue. Raises RunError if there is none, or if config or data differ."""
        run = cls(path)
        if not run._config_file.exists():
            raise RunError(f"there is no run to resume in {path}; start it without --resume")
        user_files.keep_folder(path / user_files.FOLDER)
        if not run.is_of(config):
            differences = _differences(run.config, config)
            reason = "; ".join(differences[:MAX_DIFFERENCES]) or "the text of a file that it names has changed"
            raise RunError(f"the run in {path} was made with another config or seed: {reason}; resume it with its own")
        if run.data_sha256 != data_sha256:
            raise RunError(f"the run in {path} was made on other data; restore that data or start a new run")
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """A run to read. Raises RunError if it has no finished generation."""
        run = cls(path)
        if not cls.is_run(path):
            message = f"there is no folder {path}; name the one that the run was written into"
            if path.exists():
                message = f"{path} holds no run with a finished generation; name the folder given as --out"
            raise RunError(other_folder(path) or message)
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
        return parse(self._config_value("config", dict), f"the config of the run in {self.path}")

    @property
    def tables(self) -> tuple[TableConfig, ...]:
        """Tables of the config, with paths to the files that they were read from or their namesakes in this folder."""
        tables = self.config.features.tables
        folder = Path(self._config_value("folder", str)) if tables else Path()
        return tuple(
            table
            if Path(user_files.unpinned(table.file)).is_file()
            else dataclasses.replace(table, file=str(folder / table.file))
            for table in tables
        )

    def with_tables(self, config: RunConfig) -> RunConfig:
        """A config to resume the run with: it has the tables of the run instead of newer versions of their files."""
        if not config.features.tables or not self._config_file.exists():
            return config
        user_files.keep_folder(self.path / user_files.FOLDER)
        kept_tables = {user_files.unpinned(table.file): table for table in self.config.features.tables}
        tables = tuple(
            dataclasses.replace(table, file=kept_tables[table.file].file) if table.file in kept_tables else table
            for table in config.features.tables
        )
        return dataclasses.replace(config, features=dataclasses.replace(config.features, tables=tables))

    @property
    def data_sha256(self) -> str:
        """Hash of the panel the run was made on."""
        return str(self._config_value("data_sha256", str))

    def state(self, groups: Sequence[Group] = ()) -> RunState | None:
        """State of the last finished generation, None before the first. groups: groups of a run that saved none."""
        return read_state(self._state_file, self.config.tournament, groups) if self._state_file.exists() else None

    def leaderboard(self) -> Leaderboard:
        """Leaderboard of the last finished generation, empty before the first."""
        return (self.state() or initial_state(self.config.tournament, ())).leaderboard

    def snapshot(self, agent: str) -> AgentSnapshot:
        return snapshots.load(self._snapshots / f"{agent}.json")

    def agents(self) -> list[Score]:
        """Scores of all agents, by assignment; scores of repeated assignments may not count."""
        files = sorted((self.path / "metrics").glob("[0-9]*.json"))
        return [agent for file in files for agent in read_curves(file).agents]

    def validation_returns(self, generations: Collection[int]) -> dict[str, Floats]:
        """Validation returns [T] saved in these generations: by id; "base" is the base portfolio."""
        files = [self._validation_file(generation) for generation in generations]
        return {name: x.numpy() for file in files for name, x in snapshots.load_tensors(file).items()}

    def start_returns(self) -> Floats | None:
        """Validation returns [T] of the policy that agents start from; None for a run without one."""
        file = self._validation_file(START)
        return snapshots.load_tensors(file)[START].numpy() if file.exists() else None

    def start_folds(self) -> StartFolds:
        """Contents of start.json: how the number of updates was chosen; empty for a run without it."""
        if not self._start_file.exists():
            return StartFolds()
        values = read_json(self._start_file)
        try:
            folds = tuple(
                StartFold(**{**row, "shares": tuple(row["shares"]), "ratios": tuple(row["ratios"])})
                for row in values["folds"]
            )
            return StartFolds(tuple(values["samples_per_generation"]), folds)
        except (KeyError, TypeError):
            raise RunError(f"{self._start_file} is damaged; restore it or start a new run") from None

    def samples_per_generation(self, config: RunConfig) -> tuple[int, ...]:
        """Environment steps per pod and generation of [agent] and of each cohort."""
        default = (config.tournament.samples_per_generation,) * (1 + len(config.cohorts))
        return self.start_folds().samples_per_generation or default

    def replay(self, generation: int, group: int) -> dict[str, Tensor] | None:
        """Items saved by `save_replay` for a group and generation, or None."""
        file = self._replay_file(generation, group)
        return snapshots.load_tensors(file) if file.exists() else None

    def result(self, group: int, number: int) -> AssignmentResult | None:
        """Result saved by `save_result`, or None. Raises RunError if its file is damaged."""
        file = self._result_file(group, number)
        if not file.exists():
            return None
        try:
            return decode_result(file.read_bytes())
        except OSError as error:
            raise RunError(f"cannot read {file}: {error.strerror}") from None
        except (RunError, KeyError, TypeError, ValueError):
            raise RunError(f"{file} is damaged; remove it to train its assignment again") from None

    # ------------------------------------------------------------------ writing

    def save_result(self, result: AssignmentResult) -> None:
        """Save a result until `save_generation` has saved everything it consists of, see `forget_results`."""
        write_bytes(self._result_file(*result.key), encode_result(result))

    def forget_results(self, keep: Collection[tuple[int, int]]) -> None:
        """Remove saved results except these, each given by group and number."""
        files = {self._result_file(*key) for key in keep}
        for file in (self.path / "results").glob("*"):
            if file not in files:
                file.unlink()

    def save_start(self, start: AgentSnapshot, returns: Floats, folds: StartFolds) -> None:
        """Save the policy that agents start from. returns: [T] on validation. folds: contents of start.json."""
        snapshots.save(self._snapshots, dataclasses.replace(start, id=START))
        snapshots.save_tensors(self._validation_file(START), {START: torch.from_numpy(returns.copy())})
        write_json(self._start_file, to_plain(dataclasses.asdict(folds)))

    @property
    def has_start(self) -> bool:
        return self._start_file.exists()

    def save_validation(self, generation: int, returns: Mapping[str, Floats]) -> None:
        """Add validation returns [T] of the agents of a generation by id. Call it before `save_generation`."""
        file = self._validation_file(generation)
        together = {**(self.validation_returns([generation]) if file.exists() else {}), **returns}
        snapshots.save_tensors(file, {name: torch.from_numpy(x.copy()) for name, x in together.items()})

    def save_replay(self, generation: int, group: int, items: Mapping[str, Tensor]) -> None:
        """Save the items collected by a group in a generation, oldest first. Call it before `save_generation`."""
        snapshots.save_tensors(self._replay_file(generation, group), items)

    def forget_replay(self, generation: int, group: int) -> None:
        """Remove saved items that the replay buffers no longer hold."""
        self._replay_file(generation, group).unlink(missing_ok=True)

    def save_generation(
        self,
        generation: int,
        agents: Sequence[AgentSnapshot],
        keep: Collection[str],
        curves: LearningCurves,
        state: RunState,
    ) -> None:
        """Write agents of a generation, or of some of its groups, state.json last. Snapshots not in `keep` are removed.

        curves: curves of these agents; saved curves of other groups stay.
        """
        for agent in agents:
            snapshots.save(self._snapshots, agent)
        file = self.path / "metrics" / f"{generation:04d}.json"
        saved_curves = [read_curves(file).without(curves.slots)] if file.exists() else []
        LearningCurves.joined([*saved_curves, curves]).write(file)
        tensorboard_log.write(self.path / "tensorboard", generation, curves)
        write_json(self._state_file, state.to_dict())
        for file in self._snapshots.iterdir():
            # Remove files of this program only.
            match = _SNAPSHOT_FILE.fullmatch(file.name)
            if match and (match["id"] not in keep or file.name.startswith(".")):
                file.unlink()

    def _config_value(self, name: str, kind: type) -> Any:
        value = read_json(self._config_file).get(name)
        if not isinstance(value, kind):
            raise RunError(f"{self._config_file} is damaged: {name} is missing; restore it or start a new run")
        return value

    def _validation_file(self, generation: int | str) -> Path:
        name = generation if isinstance(generation, str) else f"{generation:04d}"
        return self.path / "validation" / f"{name}.safetensors"

    def _result_file(self, group: int, number: int) -> Path:
        return self.path / "results" / f"{number:04d}-{group}.safetensors"

    def _replay_file(self, generation: int, group: int) -> Path:
        return self.path / "replay" / f"{generation:04d}-{group}.safetensors"


def _differences(run_settings: object, settings: object, section: str = "") -> list[str]:
    """The settings that differ between two records, such as "tournament.pods is 4 in the run and 8 here"."""
    differences: list[str] = []
    for name in dict.fromkeys((*vars(run_settings), *vars(settings))):
        run_value = getattr(run_settings, name, None)
        value = getattr(settings, name, None)
        texts = [user_files.unpinned(x) if isinstance(x, str) else x for x in (run_value, value)]
        if texts[0] == texts[1]:  # pinned names also differ by the text of their file
            continue
        if dataclasses.is_dataclass(run_value) and dataclasses.is_dataclass(value):
            differences += _differences(run_value, value, f"{section}{name}.")
        elif all(isinstance(x, bool | int | float | str) for x in (run_value, value)):
            differences.append(f"{section}{name} is {run_value} in the run and {value} here")
        else:
            differences.append(f"{section}{name}")
    return differences
