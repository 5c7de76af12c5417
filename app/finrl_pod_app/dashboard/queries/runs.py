"""Runs on disk: search, status, progress and results. Reads JSON only and needs no torch."""

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
from finrl_pod.settings.run import RunConfig, parse_saved
from finrl_pod_app.report.columns import diversity_of
from finrl_pod_app.services import progress_file

MAX_DEPTH = 3  # folders below the root: a walk-forward keeps its runs in OUT/fold-01/seed-0
CONFIG, STATE, REPORT, VERDICT, JOB, LOG = (
    "config.json", "state.json", "report.json", "verdict.json", "job.json", "log.txt",
)  # fmt: skip
RESULT = "result.json"  # of a tournament on an environment without a market
PLAN = "plan.json"  # in the folder of a walk-forward, two levels above its runs
_STAMPED = (CONFIG, STATE, REPORT, VERDICT, JOB)
_VERDICT_FIELDS = ("promoted", "rules", "trials", "looks", "statistics")
_MANDATE_PARTS = ("mandate", "added", "added_to_tilt_zero", "mandate_usage")
LOG_TAIL_BYTES = 4096

_PROMOTION_LABELS = {None: "", True: "promoted", False: "not promoted"}

Status = Literal["running", "paused", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class RunFiles:
    """A run's folder. Equal records have equal contents, so they serve as cache keys.

    name: path below the root. stamp: modification time of each file in ns, 0 if it does not exist.
    """

    path: Path
    name: str
    stamp: tuple[int, ...]

    @property
    def changed(self) -> float:
        """Time of the last change in seconds since 1970."""
        return max(self.stamp) / 1e9

    @property
    def has_champion(self) -> bool:
        """Whether a generation has finished, so that there is a current champion."""
        return self.stamp[_STAMPED.index(STATE)] > 0


@dataclass(frozen=True)
class RunSummary:
    """One row of the table of runs.

    score: best validation score. sharpe, annual_return, drawdown: of the champion on test, as fractions; None if it was
    not tested. promoted: None without a verdict. error: why the run cannot be read, or empty.
    """

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
    error: str = ""


def is_test_look_recorded(run: RunFiles) -> bool:
    """Whether the look at the test period is recorded, since the verdict is newer than the run's state."""
    modified = dict(zip(_STAMPED, run.stamp, strict=True))
    return modified[VERDICT] > 0 and modified[VERDICT] >= modified[STATE]


def find_runs(root: Path) -> list[RunFiles]:
    """All runs below `root`, latest change first; empty if the folder is missing or not readable."""
    found = [RunFiles(path, path.relative_to(root).as_posix(), _stamp(path)) for path in _run_folders(root, MAX_DEPTH)]
    return sorted(found, key=lambda run: (-run.changed, run.name))


def open_run(root: Path, name: str) -> RunFiles:
    """The run of a name, which may come from a URL. Raises RunError if there is no such run below `root`."""
    path = root / name
    if not name or not path.resolve().is_relative_to(root.resolve()) or not _is_run(path):
        raise RunError(f"no run {name!r} in {root}: choose one from the list")
    return RunFiles(path, name, _stamp(path))


def status_of(run: RunFiles) -> Status:
    """The status of a run, from its files and its process."""
    process = process_of(run)
    if process is not None:
        return "paused" if progress_file.is_paused(process) else "running"
    if any((run.path / file).exists() for file in (REPORT, RESULT)) or (
        walkforward_of(run) is not None and _is_fully_trained(run)
    ):
        return "finished"
    return "interrupted" if (run.path / CONFIG).exists() else "failed"


def walkforward_of(run: RunFiles) -> Path | None:
    """The folder of the walk-forward that the run belongs to, or None. Such a run has no report and no verdict."""
    folder = run.path.parent.parent
    return folder if (folder / PLAN).is_file() else None


def walkforward_resume_command(folder: Path) -> str:
    """The command that resumes a walk-forward with its original folds and seeds."""
    plan = read_json(folder / PLAN)
    options = f"--folds {plan.get('folds')} --seeds {plan.get('seeds')}"
    return f"finrl-pod walkforward CONFIG.toml {options} --resume --out {shlex.quote(str(folder))}"


@lru_cache(maxsize=1_000)
def _is_fully_trained(run: RunFiles) -> bool:
    """Whether all generations have finished."""
    summary = summarise(run)
    return 0 < summary.generations <= summary.generation


def process_of(run: RunFiles) -> Any | None:
    """The training process of a run (psutil.Process), or None."""
    return progress_file.process_of(progress_file.read(run.path / progress_file.FILE)) or progress_file.process_of(
        progress_file.read(run.path / JOB)
    )


def progress_of(run: RunFiles) -> Mapping[str, Any] | None:
    """The last `Progress` fields reported by a running training, or None."""
    values = (progress_file.read(run.path / progress_file.FILE) or {}).get("progress")
    return values if isinstance(values, dict) else None


def log_tail(run: RunFiles) -> str:
    """The end of the training's log; empty if there is none."""
    try:
        with (run.path / LOG).open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES, 0))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def summarise(run: RunFiles) -> RunSummary:
    """The summary of a run. Unreadable files set its `error` instead of raising."""
    try:
        return _summary(run)
    except (RunError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = str(error) if isinstance(error, RunError) else "the run is damaged: a field is missing or invalid"
        return RunSummary(run.name, run.changed, error=reason)


def champions(run: RunFiles) -> tuple[str, ...]:
    """Members of a finished run's champion; empty before. Raises RunError for a damaged report."""
    if not (run.path / REPORT).exists():
        return ()
    return tuple((read_json(run.path / REPORT).get("champion") or {}).get("members", ()))


def champion_diversity(run: RunFiles) -> str:
    """Roots and mean correlation of a finished run's champion as a sentence; empty before and for earlier versions.

    Raises RunError for a damaged report.
    """
    if not (run.path / REPORT).exists():
        return ""
    text = diversity_of(read_json(run.path / REPORT).get("champion") or {})
    return f"The champion's members descend{text}." if text else ""


def mandate_parts(run: RunFiles) -> dict[str, Any]:
    """The parts of a finished run's report on its mandate; empty before. Raises RunError for a damaged report."""
    if not (run.path / REPORT).exists():
        return {}
    report = read_json(run.path / REPORT)
    return {name: report[name] for name in _MANDATE_PARTS if name in report}


def config(run: RunFiles) -> RunConfig:
    """The config of a run. Raises RunError or ConfigError if it is damaged."""
    values = read_json(run.path / CONFIG).get("config")
    if not isinstance(values, dict):
        raise RunError(f"{run.path / CONFIG} is damaged: config is missing; restore the file or start a new run")
    return parse_saved(values, f"the config of the run in {run.path}")


def verdict(run: RunFiles) -> dict[str, Any] | None:
    """The object of verdict.json, or None without a verdict. Raises RunError if it is damaged."""
    if not (run.path / VERDICT).exists():
        return None
    values = read_json(run.path / VERDICT)
    if missing := [name for name in _VERDICT_FIELDS if name not in values]:
        raise RunError(f"{run.path / VERDICT} is damaged: {missing[0]} is missing; evaluate the run again")
    return values


def runs_table(summaries: Sequence[RunSummary], statuses: Sequence[str]) -> pd.DataFrame:
    """One row per run: the fields of `RunSummary`, status and progress; changed as UTC times."""
    rows = [{**vars(summary), "status": status} for summary, status in zip(summaries, statuses, strict=True)]
    frame = pd.DataFrame(rows, columns=[*RunSummary.__dataclass_fields__, "status"])
    frame["changed"] = pd.to_datetime(frame["changed"], unit="s", utc=True)
    frame["promoted"] = [_PROMOTION_LABELS[summary.promoted] for summary in summaries]
    frame["pods"] = frame["pods"].where(frame["pods"] > 0)  # unknown before the training has started
    frame["progress"] = [s.generation / s.generations if s.generations else 0.0 for s in summaries]
    return frame


def _summary(run: RunFiles) -> RunSummary:
    if not (run.path / CONFIG).exists():
        return RunSummary(run.name, run.changed)
    config = read_json(run.path / CONFIG)["config"]
    tournament = config["tournament"]
    algorithms = [config["agent"]["algorithm"], *(cohort["algorithm"] for cohort in config["cohorts"])]
    values: dict[str, Any] = {
        "data": str(config["data"]["name"]),
        "algorithm": ", ".join(dict.fromkeys(map(str, algorithms))),
        "pods": int(tournament["pods"]),
        "generations": int(tournament["generations"]),
        "seed": int(config["seed"]),
    }
    if (run.path / STATE).exists():
        state = read_json(run.path / STATE)
        samples, seconds = int(state["samples"]), float(state["train_seconds"])
        values |= {"generation": int(state["generation"]) + 1, "samples": samples}
        values["samples_per_second"] = samples / seconds if seconds > 0 else None
        values["score"] = max((row["score"] for row in state["leaderboard"] if row["score"] is not None), default=None)
    if (run.path / VERDICT).exists():
        judged = read_json(run.path / VERDICT)
        tested = judged["statistics"].get("test_intervals") or {}
        metrics = {name: (tested.get(name) or {}).get("value") for name in ("sharpe", "annual_return", "max_drawdown")}
        values |= {"sharpe": metrics["sharpe"], "annual_return": metrics["annual_return"]}
        values |= {"drawdown": metrics["max_drawdown"], "promoted": bool(judged["promoted"])}
    return RunSummary(run.name, run.changed, **values)


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            below = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
    except OSError:
        return
    for path in below:
        if _is_run(path):
            yield path
        elif depth > 1:
            yield from _run_folders(path, depth - 1)


def _is_run(path: Path) -> bool:
    """Whether it is the folder of a tournament. Folders of `train --env` have a different config."""
    modified = _mtime_ns(path / CONFIG)
    return (modified > 0 and not _is_gymnasium_config(path / CONFIG, modified)) or (path / JOB).is_file()


@lru_cache(maxsize=10_000)
def _is_gymnasium_config(file: Path, modified: int) -> bool:  # noqa: ARG001 - cache key
    try:
        values = read_json(file)
    except RunError:
        return False  # its summary reports the error
    return "env" in values and "config" not in values


def _stamp(path: Path) -> tuple[int, ...]:
    return tuple(_mtime_ns(path / name) for name in _STAMPED)


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
