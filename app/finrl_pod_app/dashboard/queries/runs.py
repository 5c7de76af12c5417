"""Runs on disk: search, bounded reading of their files, status, progress and results. Needs no torch.

A folder may come from anywhere: only regular files below a size are read, and no symbolic link is followed.
"""

from __future__ import annotations

import math
import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from finrl_pod import files
from finrl_pod.errors import FinrlPodError, RunError
from finrl_pod.evaluate.metrics import METRICS
from finrl_pod.promotion.verdict import Metrics, Verdict
from finrl_pod.settings.run import RunConfig, parse
from finrl_pod.tournament.progress import Progress
from finrl_pod_app.dashboard.queries.run_settings import Settings, dotted_settings
from finrl_pod_app.report.columns import CHAMPION
from finrl_pod_app.report.records import RunReport, parse_report
from finrl_pod_app.setup import progress_file
from finrl_pod_app.setup.output_folder import TEMPORARY

MAX_DEPTH = 3  # folders below the root: a walk-forward keeps its runs in OUT/fold-01/seed-0
MAX_BYTES = 64_000_000  # of a file of JSON
MAX_DIGITS = 18  # of an integer: no statistic of a run is larger
CONFIG, STATE, REPORT, VERDICT, JOB, LOG = (
    "config.json", "state.json", "report.json", "verdict.json", "job.json", "log.txt",
)  # fmt: skip
PAGE, CURVES, TAGS = "report.html", "curves.safetensors", "tags.json"
_STAMPED = (CONFIG, STATE, REPORT, VERDICT, JOB, PAGE, CURVES, TAGS, TEMPORARY)
TEMPORARY_TAG = "temporary, of paper demo"
RESULT = "result.json"  # of a tournament on an environment without a market
PLAN = "plan.json"  # in the folder of a walk-forward, two levels above its runs
MAX_PAGE_BYTES = 32_000_000  # of report.html
LOG_TAIL_BYTES = 4096

_PROMOTION_LABELS = {None: "", True: "promoted", False: "not promoted"}

Status = Literal["running", "paused", "finished", "interrupted", "failed", "damaged"]


@dataclass(frozen=True)
class RunFiles:
    """The folder of a run. Equal records have equal contents, so they serve as cache keys.

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
        return self.has(STATE)

    @property
    def is_temporary(self) -> bool:
        """Whether `finrl-pod paper demo` trained the champion for its account: it is no result of the user."""
        return self.has(TEMPORARY)

    def has(self, file: str) -> bool:
        """True if one of the files of the run existed when its folder was read."""
        return self.modified(file) > 0

    def modified(self, file: str) -> int:
        """Modification time of one of the files in ns, 0 if it does not exist."""
        return self.stamp[_STAMPED.index(file)]


def find_runs(root: Path) -> list[RunFiles]:
    """All runs below `root`, latest change first; empty if the folder is missing or not readable."""
    runs = [_run_files(path, root) for path in _run_folders(root, MAX_DEPTH)]
    return sorted(runs, key=lambda run: (-run.changed, run.name))


def open_run(root: Path, name: str) -> RunFiles:
    """The run of a name; the name may come from a URL. Raises RunError if there is no such run below `root`."""
    names = name.split("/")
    if name and "\0" not in name and all(name_part not in ("", ".", "..") for name_part in names):
        folders = [root.joinpath(*names[: count + 1]) for count in range(len(names))]
        if all(stat.S_ISDIR(_mode(folder)) for folder in folders) and _is_run(folders[-1]):
            return _run_files(folders[-1], root)
    raise RunError(f"no run {name!r} in {root}: choose one from the list")


def read_object(file: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON object of a run. Raises RunError if it is missing, damaged, a link, or too large."""
    return files.read_json(file, max_bytes=max_bytes, follow_links=False, max_digits=MAX_DIGITS)


def read_bytes(file: Path, max_bytes: int) -> bytes:
    """Read a file of a run. Raises RunError as `read_object`."""
    return files.read_regular(file, max_bytes, follow_links=False)


def is_file(file: Path) -> bool:
    """Whether there is a regular file; False for links and pipes."""
    return stat.S_ISREG(_mode(file))


def _run_files(path: Path, root: Path) -> RunFiles:
    return RunFiles(path, path.relative_to(root).as_posix(), tuple(_mtime_ns(path / name) for name in _STAMPED))


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            folders = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
    except OSError:
        return
    for path in folders:
        if _is_run(path):
            yield path
        elif depth > 1:
            yield from _run_folders(path, depth - 1)


def _is_run(path: Path) -> bool:
    """Whether it is the folder of a tournament. Folders of `train --env` have a different config."""
    modified_ns = _mtime_ns(path / CONFIG)
    return (modified_ns > 0 and not _is_gymnasium_config(path / CONFIG, modified_ns)) or is_file(path / JOB)


@lru_cache(maxsize=10_000)
def _is_gymnasium_config(file: Path, modified: int) -> bool:  # noqa: ARG001 - cache key
    try:
        values = read_object(file)
    except RunError:
        return False  # its summary reports the error
    return "env" in values and "config" not in values


def _mode(path: Path) -> int:
    try:
        return os.lstat(path).st_mode
    except (OSError, ValueError):
        return 0


def _mtime_ns(path: Path) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


@dataclass(frozen=True)
class RunSummary:
    """One row of the table of runs.

    score: best validation score. validation: metrics of the champion on validation by name. settings: texts by dotted
    name. promoted: None without a verdict. tags: given by visitors. error: why the run is damaged, or empty. There are
    no figures of the test period: a list of runs would be sorted by them.
    """

    name: str
    changed: float
    data: str = ""
    algorithm: str = ""
    pods: int = 0
    generation: int = 0
    generations: int = 0
    seed: int = 0
    score: float | None = None
    validation: Metrics = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    promoted: bool | None = None
    tags: tuple[str, ...] = ()
    error: str = ""


def is_test_look_recorded(run: RunFiles) -> bool:
    """Whether the look at the test period is recorded, since the verdict is newer than the state of the run."""
    return run.has(VERDICT) and run.modified(VERDICT) >= run.modified(STATE)


def status_of(run: RunFiles) -> Status:
    """The status of a run, from its files and its process; never "damaged": `RunSummary.error` says that."""
    process = process_of(run)
    if process is not None:
        return "paused" if progress_file.is_paused(process) else "running"
    if any(is_file(run.path / file) for file in (REPORT, RESULT)) or (
        walkforward_of(run) is not None and _is_fully_trained(run)
    ):
        return "finished"
    return "interrupted" if is_file(run.path / CONFIG) else "failed"


def walkforward_of(run: RunFiles) -> Path | None:
    """The folder of the walk-forward that the run belongs to, or None. Such a run has no report and no verdict."""
    folder = run.path.parent.parent
    return folder if (folder / PLAN).is_file() else None


def walkforward_resume_command(folder: Path) -> str:
    """The command that resumes a walk-forward with its original folds and seeds."""
    plan = read_object(folder / PLAN)
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


def progress_of(run: RunFiles) -> Progress | None:
    """The last progress that a running training reported; None without any, or if the file cannot be read."""
    values = (progress_file.read(run.path / progress_file.FILE) or {}).get("progress")
    try:
        return Progress(**values) if isinstance(values, dict) else None
    except TypeError:  # fields of another version
        return None


def log_tail(run: RunFiles) -> str:
    """The end of the log of a training; empty if there is none."""
    log = run.path / LOG
    if not is_file(log):
        return ""
    try:
        with log.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES, 0))
            return file.read(LOG_TAIL_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def summarise(run: RunFiles) -> RunSummary:
    """The summary of a run. Whatever reading its files raises sets its `error`, so that no run hides the others."""
    try:
        return _summary(run)
    except Exception as error:  # noqa: BLE001 - files may hold anything
        return RunSummary(run.name, run.changed, error=damage(run, error))


def damage(run: RunFiles, error: Exception) -> str:
    """Why a run is damaged, as a sentence without the path of its folder."""
    if isinstance(error, FinrlPodError):
        return str(error).replace(f"{run.path}{os.sep}", "")
    return f"the run is damaged: a field is missing or invalid ({type(error).__name__})"


def report(run: RunFiles) -> RunReport:
    """The report; without any parts before the run has finished. Raises RunError if the file is no JSON object."""
    return parse_report(read_object(run.path / REPORT)) if run.has(REPORT) else RunReport()


def validation_metrics(report: RunReport) -> Metrics:
    """Metrics of the champion on validation; empty if the report has none."""
    results = report.test if report.split == "validation" else report.validation
    return {} if results is None else results.strategies.get(CHAMPION, {})


def base_score(run: RunFiles, report: RunReport) -> float | None:
    """Sharpe ratio of the base portfolio on validation before costs, from the report or else a running training.

    None if neither has it: off a market, and after a run that stopped or was not tested. report: report of the run.
    """
    if report.base_score is not None:
        return report.base_score
    progress = progress_of(run)
    return progress.base if progress else None


def champions(run: RunFiles) -> tuple[str, ...]:
    """Members of the champion of a finished run; empty before. Raises RunError for a damaged report."""
    champion = report(run).champion
    return champion.members if champion else ()


def config(run: RunFiles) -> RunConfig:
    """The config of a run. Raises RunError or ConfigError if it is damaged."""
    values = read_object(run.path / CONFIG).get("config")
    if not isinstance(values, dict):
        raise RunError(f"{run.path / CONFIG} is damaged: config is missing; restore the file or start a new run")
    return parse(values, f"the config of the run in {run.path}")


def verdict(run: RunFiles) -> Verdict | None:
    """The verdict, or None without one. Raises RunError if it is damaged."""
    if not run.has(VERDICT):
        return None
    report = parse_report({"verdict": read_object(run.path / VERDICT)})
    if report.verdict is None or report.damage:
        raise RunError(f"{run.path / VERDICT} is damaged: {report.damage[0]}; evaluate the run again")
    return report.verdict


def runs_table(summaries: Sequence[RunSummary], statuses: Sequence[str]) -> pd.DataFrame:
    """One row per run: the fields of `RunSummary`, status and progress; changed as UTC times.

    Metrics on validation have a column validation.NAME each, settings one under their dotted name.
    """
    rows = [
        {
            **{name: value for name, value in vars(summary).items() if name not in ("validation", "settings")},
            "status": status,
            **{f"validation.{metric.name}": summary.validation.get(metric.name) for metric in METRICS},
            **summary.settings,
        }
        for summary, status in zip(summaries, statuses, strict=True)
    ]
    frame = pd.DataFrame(rows)
    frame["changed"] = pd.to_datetime(frame["changed"], unit="s", utc=True)
    frame["promoted"] = [_PROMOTION_LABELS[summary.promoted] for summary in summaries]
    frame["pods"] = frame["pods"].where(frame["pods"] > 0)  # unknown before the training has started
    frame["tags"] = [list(summary.tags) for summary in summaries]
    frame["progress"] = [s.generation / s.generations if s.generations else 0.0 for s in summaries]
    return frame


def _summary(run: RunFiles) -> RunSummary:
    if not run.has(CONFIG):
        return RunSummary(run.name, run.changed)
    # Read without `config`: it takes milliseconds, and overviews show hundreds of runs.
    settings = read_object(run.path / CONFIG)["config"]
    tournament = settings["tournament"]
    algorithms = [settings["agent"]["algorithm"], *(cohort["algorithm"] for cohort in settings["cohorts"])]
    tags = read_object(run.path / TAGS)["tags"] if run.has(TAGS) else ()
    tags = dict.fromkeys((TEMPORARY_TAG, *tags) if run.is_temporary else tags)
    summary = RunSummary(
        run.name,
        run.changed,
        data=str(settings["data"]["name"]),
        algorithm=", ".join(dict.fromkeys(map(str, algorithms))),
        pods=int(_number(tournament["pods"]) or 0),
        generations=int(_number(tournament["generations"]) or 0),
        seed=int(_number(settings["seed"]) or 0),
        settings=dotted_settings(settings),
        tags=tuple(map(str, tags)),
    )
    if run.has(STATE):
        state = read_object(run.path / STATE)
        scores = [_number(row["score"]) for row in state["leaderboard"]]
        summary = replace(
            summary,
            generation=int(_number(state["generation"]) or 0) + 1,
            score=max((score for score in scores if score is not None), default=None),
        )
    if run.has(VERDICT):
        run_verdict = verdict(run)
        summary = replace(summary, promoted=run_verdict is not None and run_verdict.promoted)
    if run.has(REPORT):
        summary = replace(summary, validation=validation_metrics(report(run)))
    return summary


def _number(value: object) -> float | None:
    """A number of a file; None for null, NaN and infinity. Raises RunError for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RunError(f"the run is damaged: a number was expected, not {str(value)[:40]!r}")
    return value if math.isfinite(value) else None
