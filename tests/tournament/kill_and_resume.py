"""Kill tournaments with SIGKILL at given file writes and resume them; runs as a separate process.

python -m tests.tournament.kill_and_resume FOLDER POINT...: prints one JSON line {"point", "signal", "state"} per
point. Each run is a fork that is killed right before its rename of file number POINT / 2 (for odd points: right after),
so that points cover every position between two files of a generation.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import torch

from tests.tournament.small_tournament import small_config, tournament


def run_until_killed(folder: Path, point: int) -> int:
    """Start a run that is killed at `point` and return the signal that ended it; 0 if it finished."""
    child = os.fork()
    if not child:
        replace, count = os.replace, 0

        def killing_replace(source: Any, target: Any) -> None:
            nonlocal count
            if 2 * count == point:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)
            if 2 * count + 1 == point:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

        os.replace = killing_replace  # type: ignore[assignment]
        run_and_exit(lambda: tournament(small_config(), folder).run())
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def resume_run(folder: Path) -> None:
    """Resume the run from disk in another process."""
    child = os.fork()
    if not child:
        resume = (folder / "config.json").exists()
        run_and_exit(lambda: tournament(small_config(), folder, resume=resume).run())
    os.waitpid(child, 0)


def run_and_exit(work: Any) -> None:
    try:
        work()
    except BaseException:  # noqa: BLE001  a fork must never return into its parent's code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(folder: Path, points: list[int]) -> None:
    torch.set_num_threads(1)
    # Import here what the forks need; a process with threads must not be forked.
    for module in ("safetensors.torch", "tensorboard.summary.writer.event_file_writer"):
        importlib.import_module(module)
    assert threading.active_count() == 1
    for point in points:
        run_folder = folder / f"{point}"
        exit_signal = run_until_killed(run_folder, point)
        resume_run(run_folder)
        state = json.loads((run_folder / "state.json").read_text())
        for name in ("seconds", "scoring_seconds"):
            state.pop(name)
        sys.stdout.write(json.dumps({"point": point, "signal": exit_signal, "state": state}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), list(map(int, sys.argv[2:])))
