"""A child ends with its parent, also with one that was gone before the child could ask for it."""

from __future__ import annotations

import os
import subprocess
import sys

CHILD = """
import json, sys, time
from finrl_pod.process import die_with_parent
die_with_parent(json.loads(sys.argv[1]))
print("stays")
"""


def child(pid: int) -> subprocess.CompletedProcess[str]:
    order = f'{{"pid": {pid}, "main_thread": true}}'
    return subprocess.run([sys.executable, "-c", CHILD, order], capture_output=True, text=True, check=False)


def test_a_child_of_a_dead_parent_exits_at_once() -> None:
    assert child(os.getpid()).stdout == "stays\n"
    orphan = child(os.getppid())  # it has been given to another one
    assert (orphan.returncode, orphan.stdout) == (1, "")
