"""Trainings as processes of their own: they outlive the browser and the server, and are found again by their files."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from finrl_pod.errors import InputError, RunError
from finrl_pod.files import write_json, write_text
from finrl_pod.settings.run import RunConfig
from finrl_pod_app.dashboard.queries.runs import (
    CONFIG,
    JOB,
    LOG,
    RunFiles,
    open_run,
    process_of,
    resume_walkforward,
    walkforward_of,
)
from finrl_pod_app.dashboard.queries.runs import config as config_of
from finrl_pod_app.services import progress_file
from finrl_pod_app.services.presets import config_text

SETTINGS = "settings.toml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
# A shell that starts the server in the background has it ignore Ctrl-C's signal, and children inherit that: a training
# that ignores it could not be stopped in order.
_BEGIN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from finrl_pod_app.cli.main import run; sys.exit(run(sys.argv[1:]))"
)
_started: list[subprocess.Popen[bytes]] = []  # kept until they end, so that the system may forget them


def start(config: RunConfig, runs: Path, name: str) -> RunFiles:
    """Train in the background, in a new folder below `runs`. Raises InputError for a name that is none, RunError for a
    folder that cannot be written."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"a run's name has letters, digits, '-' and '_', begins with a letter or digit and is at most 40 long, "
            f"got {name!r}"
        )
    folder = runs / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    write_text(folder / SETTINGS, config_text(config))
    _launch(folder, ["tournament", str(folder / SETTINGS), "--out", str(folder)])
    return open_run(runs, folder.name)


def pause(run: RunFiles) -> None:
    """Stop the process where it is; it keeps its memory and goes on with `resume`. Raises RunError."""
    _signal(run, signal.SIGSTOP)


def resume(run: RunFiles) -> None:
    """Go on with a run that is paused, or, from its last finished generation, with one that was interrupted. Raises
    RunError for an interrupted one of a walk-forward: alone it would be judged alone."""
    process = process_of(run)
    if process is not None:
        _signal(run, signal.SIGCONT)
        return
    if (walk := walkforward_of(run)) is not None:
        raise RunError(f"{run.name} goes on with its walk-forward: {resume_walkforward(walk)}")
    settings = run.path / SETTINGS
    if not (run.path / CONFIG).exists():
        _launch(run.path, ["tournament", str(settings), "--out", str(run.path)])
        return
    if not settings.exists():
        write_text(settings, config_text(config_of(run)))
    _launch(run.path, ["tournament", str(settings), "--out", str(run.path), "--resume"])


def stop(run: RunFiles) -> None:
    """End it as Ctrl-C does: what it saved is kept, and `resume` goes on from there. Raises RunError."""
    _signal(run, signal.SIGINT)
    with contextlib.suppress(RunError):  # a paused process hears nothing before it goes on; it may be gone by now
        _signal(run, signal.SIGCONT)


def reap() -> None:
    """Let the system forget the trainings of this process that have ended."""
    _started[:] = [process for process in _started if process.poll() is None]


def _launch(folder: Path, arguments: Sequence[str]) -> None:
    reap()
    try:
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
    except OSError as error:
        raise RunError(f"cannot start a training in {folder}: {error.strerror}") from None
    _started.append(process)
    with contextlib.suppress(psutil.Error):  # it may have ended at once, and said why in its log
        write_json(folder / JOB, {"process": progress_file.identity(process.pid)})


def _signal(run: RunFiles, number: signal.Signals) -> None:
    process: Any = process_of(run)
    try:
        if process is None or not any("finrl_pod" in part or "finrl-pod" in part for part in process.cmdline()):
            raise RunError(f"no training runs in {run.path}")
        process.send_signal(number)
    except psutil.Error:
        raise RunError(f"the training in {run.path} has ended or belongs to somebody else") from None
