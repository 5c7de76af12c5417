"""Trainings as separate processes: they outlive browser and server and are found again by their files."""

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
    walkforward_of,
    walkforward_resume_command,
)
from finrl_pod_app.dashboard.queries.runs import config as config_of
from finrl_pod_app.setup import progress_file
from finrl_pod_app.setup.presets import config_text

SETTINGS = "settings.toml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
# A shell makes its background jobs ignore SIGINT, and children inherit that; a training must handle it to stop cleanly.
_BOOTSTRAP = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from finrl_pod_app.cli.main import run; sys.exit(run(sys.argv[1:]))"
)
_children: list[subprocess.Popen[bytes]] = []  # kept until they end, so that none remains a zombie


def start(config: RunConfig, runs: Path, name: str) -> RunFiles:
    """Start a training in a new folder below `runs`.

    Raises InputError for an invalid name, RunError if the folder cannot be written or the process not started.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            f"invalid run name {name!r}: use at most 40 letters, digits, '-' and '_', starting with a letter or digit"
        )
    folder = runs / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    write_text(folder / SETTINGS, config_text(config))
    _spawn(folder, ["tournament", str(folder / SETTINGS), "--out", str(folder)])
    return open_run(runs, folder.name)


def pause(run: RunFiles) -> None:
    """Suspend the process; it keeps its memory. Raises RunError if it does not run."""
    _signal(run, signal.SIGSTOP)


def resume(run: RunFiles) -> None:
    """Continue a paused training, or restart an interrupted one from its last finished generation.

    Raises RunError for an interrupted run of a walk-forward: it can only be resumed as a whole.
    """
    process = process_of(run)
    if process is not None:
        _signal(run, signal.SIGCONT)
        return
    if (walkforward := walkforward_of(run)) is not None:
        raise RunError(
            f"{run.name} is part of a walk-forward; resume it with {walkforward_resume_command(walkforward)}"
        )
    settings = run.path / SETTINGS
    if not (run.path / CONFIG).exists():
        _spawn(run.path, ["tournament", str(settings), "--out", str(run.path)])
        return
    if not settings.exists():
        write_text(settings, config_text(config_of(run)))
    _spawn(run.path, ["tournament", str(settings), "--out", str(run.path), "--resume"])


def stop(run: RunFiles) -> None:
    """End the training like Ctrl-C; finished generations are kept. Raises RunError if it does not run."""
    _signal(run, signal.SIGINT)
    with contextlib.suppress(RunError):  # a paused process handles SIGINT only after SIGCONT, and may have ended by now
        _signal(run, signal.SIGCONT)


def reap() -> None:
    """Collect the exit status of ended trainings started by this process."""
    _children[:] = [process for process in _children if process.poll() is None]


def _spawn(folder: Path, arguments: Sequence[str]) -> None:
    reap()
    try:
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
    except OSError as error:
        raise RunError(f"cannot start a training in {folder}: {error.strerror}") from None
    _children.append(process)
    with contextlib.suppress(psutil.Error):  # it may have ended at once; its log has the reason
        write_json(folder / JOB, {"process": progress_file.identity(process.pid)})


def _signal(run: RunFiles, number: signal.Signals) -> None:
    process: Any = process_of(run)
    try:
        if process is None or not any("finrl_pod" in word or "finrl-pod" in word for word in process.cmdline()):
            raise RunError(f"no training is running in {run.path}")
        process.send_signal(number)
    except psutil.Error:
        raise RunError(f"the training in {run.path} has ended or belongs to another user") from None
