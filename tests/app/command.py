"""Run the installed command as a subprocess."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(sys.executable).with_name("finrl-pod")


def environment(store: Path) -> dict[str, str]:
    return {**os.environ, "FINRL_POD_DATA": str(store), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


def restore_ctrl_c() -> None:
    """Restore SIGINT in the child: tests started in the background inherit it as ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(store: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(SCRIPT), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(store),
        preexec_fn=restore_ctrl_c,
    )


def call(store: Path, *arguments: str | Path) -> tuple[int, str, str]:
    """Run a command; return exit code, standard output and standard error."""
    process = start(store, *arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err
