"""The real command, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(sys.executable).with_name("finrl-pod")


def environment(store: Path) -> dict[str, str]:
    return {**os.environ, "FINRL_POD_DATA": str(store), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


def heed_ctrl_c() -> None:
    """In the new process: who runs the tests in the background may have told all of them to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(store: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(SCRIPT), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(store),
        preexec_fn=heed_ctrl_c,
    )


def call(store: Path, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    process = start(store, *arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err
