"""The runs on disk: which there are, how far each is, what came out. Reads JSON alone and needs no torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from finrl_pod.errors import RunError
from finrl_pod.files import read_json
from finrl_pod.settings.run import RunConfig, parse
from finrl_pod_app.services import progress_file

DEPTH = 3  # folders below the root: a walk-forward keeps its runs in OUT/fold-01/seed-0
CONFIG, STATE, REPORT, VERDICT, JOB, LOG = (
    "config.json", "state.json", "report.json", "verdict.json", "job.json", "log.txt",
)  # fmt: skip
PLAN = "plan.json"  # of a walk-forward, two folders above each of its runs
_STAMPED = (CONFIG, STATE, REPORT, VERDICT, JOB)
_LOG_TAIL = 4096  # bytes

_GATE = {None: "", True: "promoted", False: "not promoted"}

Status = Literal["running", "paused", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class RunFiles:
    """A run's folder. name: its path below the root. stamp: when each of its files last changed, in ns; 0 where it is
    not there. Equal records hold equal contents."""

    path: Path
    name: str
    stamp: tuple[int, ...]

    @property
    def changed(self) -> float:
        """Seconds since 1970 of the last change."""
        return max(self.stamp) / 1e9

    @property
    def has_champion(self) -> bool:
        """Whether a generation has finished, so that somebody leads."""
        return self.stamp[_STAMPED.index(STATE)] > 0


@dataclass(frozen=True)
class RunSummary:
    """A line about a run. score: best on validation. sharpe, annual_return, drawdown: the champion's on test, as
    fractions; None where it was not tested. promoted: None before a verdict. fault: why it cannot be read, or empty."""

    name: str
    changed: float
    data: str = ""
    algorithm: str = ""
    pods: int = 0
    generation: int = 0
    generations: int = 0
    seed: int = 0
    samples: int = 0
    samples_per_second: float | None = None
    score: float | None = None
    sharpe: float | None = None
    annual_return: float | None = None
    drawdown: float | None = None
    promoted: bool | None = None
    fault: str = ""


def is_counted(run: RunFiles) -> bool:
    """Whether the look at its test years is in the register: its champion as it stands was judged on them."""
    changed = dict(zip(_STAMPED, run.stamp, strict=True))
    return changed[VERDICT] > 0 and changed[VERDICT] >= changed[STATE]


def find_runs(root: Path) -> list[RunFiles]:
    """Every run below `root`, the one that changed last first; none where the folder is missing or may not be read."""
    found = [RunFiles(path, path.relative_to(root).as_posix(), _stamp(path)) for path in _folders(root, DEPTH)]
    return sorted(found, key=lambda run: (-run.changed, run.name))


def open_run(root: Path, name: str) -> RunFiles:
    """The run of that name, which may come from an address. Raises RunError for one that is not below `root`."""
    path = root / name
    if not name or not path.resolve().is_relative_to(root.resolve()) or not _is_run(path):
        raise RunError(f"there is no run {name!r} below {root}: choose one from the list")
    return RunFiles(path, name, _stamp(path))


def status_of(run: RunFiles) -> Status:
    """What the run does now, from its files and its process."""
    process = process_of(run)
    if process is not None:
        return "paused" if progress_file.is_paused(process) else "running"
    if (run.path / REPORT).exists() or (walkforward_of(run) is not None and _trained_out(run)):
        return "finished"
    return "interrupted" if (run.path / CONFIG).exists() else "failed"


def walkforward_of(run: RunFiles) -> Path | None:
    """The folder of the walk-forward that the run is a fold of, or None. Such a run has no report of its own: it ends
    with its last generation, and the whole is judged together."""
    above = run.path.parent.parent
    return above if (above / PLAN).is_file() else None


def resume_walkforward(folder: Path) -> str:
    """The command that goes on with it: its folds and seeds must be those it began with."""
    plan = read_json(folder / PLAN)
    asked = f"--folds {plan.get('folds')} --seeds {plan.get('seeds')}"
    return f"finrl-pod walkforward CONFIG.toml {asked} --resume --out {shlex.quote(str(folder))}"


@lru_cache(maxsize=1_000)
def _trained_out(run: RunFiles) -> bool:
    """Whether its last generation is finished."""
    summary = summarise(run)
    return 0 < summary.generations <= summary.generation


def process_of(run: RunFiles) -> Any | None:
    """The process that trains the run (psutil.Process), or None."""
    return progress_file.process_of(progress_file.read(run.path / progress_file.FILE)) or progress_file.process_of(
        progress_file.read(run.path / JOB)
    )


def progress_of(run: RunFiles) -> Mapping[str, Any] | None:
    """The fields of `Progress` as the run told them last, while it works."""
    told = progress_file.read(run.path / progress_file.FILE)
    values = (told or {}).get("progress")
    return values if isinstance(values, dict) else None


def last_words(run: RunFiles) -> str:
    """The end of what the run's process wrote, for one that failed."""
    try:
        with (run.path / LOG).open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOG_TAIL, 0))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def summarise(run: RunFiles) -> RunSummary:
    """One line about a run. Never raises for its files: what cannot be read becomes its `fault`."""
    try:
        return _summary(run)
    except (RunError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = str(error) if isinstance(error, RunError) else "its files are damaged: a field is missing or wrong"
        return RunSummary(run.name, run.changed, fault=reason)


def champions(run: RunFiles) -> tuple[str, ...]:
    """The members of a finished run's champion; none before. Raises RunError for a damaged report."""
    if not (run.path / REPORT).exists():
        return ()
    return tuple((read_json(run.path / REPORT).get("champion") or {}).get("members", ()))


def config(run: RunFiles) -> RunConfig:
    """The run's settings. Raises RunError or ConfigError where they are damaged."""
    values = read_json(run.path / CONFIG).get("config")
    if not isinstance(values, dict):
        raise RunError(f"{run.path / CONFIG} is damaged: it lacks config; restore it or start a new run")
    return parse(values, f"the config of the run in {run.path}")


def table(summaries: Sequence[RunSummary], statuses: Sequence[str]) -> pd.DataFrame:
    """A row for each run; names, numbers and moments as they are, for the page to write."""
    rows = [{**vars(summary), "status": status} for summary, status in zip(summaries, statuses, strict=True)]
    frame = pd.DataFrame(rows, columns=[*RunSummary.__dataclass_fields__, "status"])
    frame["changed"] = pd.to_datetime(frame["changed"], unit="s", utc=True)
    frame["promoted"] = [_GATE[summary.promoted] for summary in summaries]
    frame["pods"] = frame["pods"].where(frame["pods"] > 0)  # nothing is known before it has begun
    frame["progress"] = [s.generation / s.generations if s.generations else 0.0 for s in summaries]
    return frame


def _summary(run: RunFiles) -> RunSummary:
    if not (run.path / CONFIG).exists():
        return RunSummary(run.name, run.changed)
    config = read_json(run.path / CONFIG)["config"]
    tournament = config["tournament"]
    algorithms = [config["agent"]["algorithm"], *(cohort["algorithm"] for cohort in config["cohorts"])]
    facts: dict[str, Any] = {
        "data": str(config["data"]["name"]),
        "algorithm": ", ".join(dict.fromkeys(map(str, algorithms))),
        "pods": int(tournament["pods"]),
        "generations": int(tournament["generations"]),
        "seed": int(config["seed"]),
    }
    if (run.path / STATE).exists():
        state = read_json(run.path / STATE)
        samples, seconds = int(state["samples"]), float(state["train_seconds"])
        facts |= {"generation": int(state["generation"]) + 1, "samples": samples}
        facts["samples_per_second"] = samples / seconds if seconds > 0 else None
        facts["score"] = max((row["score"] for row in state["leaderboard"] if row["score"] is not None), default=None)
    if (run.path / VERDICT).exists():
        verdict = read_json(run.path / VERDICT)
        tested = verdict["statistics"].get("test_intervals") or {}
        value = {name: (tested.get(name) or {}).get("value") for name in ("sharpe", "annual_return", "max_drawdown")}
        facts |= {"sharpe": value["sharpe"], "annual_return": value["annual_return"]}
        facts |= {"drawdown": value["max_drawdown"], "promoted": bool(verdict["promoted"])}
    return RunSummary(run.name, run.changed, **facts)


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            below = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
    except OSError:
        return
    for path in below:
        if _is_run(path):
            yield path
        elif depth > 1:
            yield from _folders(path, depth - 1)


def _is_run(path: Path) -> bool:
    """Whether a tournament writes there. The folders of `train --env` have a config of their own, without a market."""
    changed = _changed(path / CONFIG)
    return (changed > 0 and not _is_of_env(path / CONFIG, changed)) or (path / JOB).is_file()


@lru_cache(maxsize=10_000)
def _is_of_env(file: Path, changed: int) -> bool:  # noqa: ARG001  another time is another file
    try:
        values = read_json(file)
    except RunError:
        return False  # damaged, which its line says
    return "env" in values and "config" not in values


def _stamp(path: Path) -> tuple[int, ...]:
    return tuple(_changed(path / name) for name in _STAMPED)


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
