"""Runs the replayed backtest in a process of its own: it needs torch, which the server does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from finrl_pod_app.cli.paper import DIFFERS

LONGEST = 600.0  # seconds


def replay(journal: Path, panel: str) -> str:
    """Make the comparison of a journal anew. Returns "" or the sentence that says why it could not be made."""
    command = [
        *(sys.executable, "-m", "finrl_pod_app.cli.main", "paper", "track", "--json"),
        *("--journal", str(journal), f"--panel={panel}"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return f"the replay took longer than {LONGEST:.0f} s and was ended: run finrl-pod paper track from a terminal"
    if done.returncode == 0 or (done.returncode == DIFFERS and done.stdout.startswith("{")):
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1].removeprefix("finrl-pod: ") if lines else f"the replay ended with {done.returncode}"
