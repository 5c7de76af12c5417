"""Runs in a separate process: tournaments killed by SIGKILL at chosen writes, then resumed.

python -m tests.tournament.killing FOLDER POINT...: {"point", "signal", "state"} a line. Each run is a fork,
killed right before its rename of file number POINT / 2 (or, for odd points, right after), so that the kill lands
between any two files of a generation.
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

from tests.tournament.tiny import tiny_config, tournament


def killed(folder: Path, point: int) -> int:
    """Start a run that dies at `point`; returns the signal that ended it."""
    child = os.fork()
    if not child:
        replace, count = os.replace, 0

        def deadly(source: Any, target: Any) -> None:
            nonlocal count
            if 2 * count == point:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)
            if 2 * count + 1 == point:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

        os.replace = deadly  # type: ignore[assignment]
        _leave(lambda: tournament(tiny_config(), folder).run())
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def resumed(folder: Path) -> None:
    """Go on in another process, from the disk alone."""
    child = os.fork()
    if not child:
        resume = (folder / "config.json").exists()
        _leave(lambda: tournament(tiny_config(), folder, resume=resume).run())
    os.waitpid(child, 0)


def _leave(work: Any) -> None:
    try:
        work()
    except BaseException:  # noqa: BLE001  a fork must never return into its parent's code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(folder: Path, points: list[int]) -> None:
    torch.set_num_threads(1)
    # What the forks need is imported once, here; a process with threads must not be forked.
    for module in ("safetensors.torch", "tensorboard.summary.writer.event_file_writer"):
        importlib.import_module(module)
    assert threading.active_count() == 1
    for point in points:
        run = folder / f"{point}"
        ended_by = killed(run, point)
        resumed(run)
        state = json.loads((run / "state.json").read_text())
        state.pop("train_seconds")
        sys.stdout.write(json.dumps({"point": point, "signal": ended_by, "state": state}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), list(map(int, sys.argv[2:])))
