"""Child processes exit with their parent, even if it exited before the child registered."""

from __future__ import annotations

import os
import subprocess
import sys

CHILD = """
import json, sys, time
from finrl_pod.process import die_with_parent
die_with_parent(json.loads(sys.argv[1]))
print("alive")
"""


def child(pid: int) -> subprocess.CompletedProcess[str]:
    arguments = f'{{"pid": {pid}, "main_thread": true}}'
    return subprocess.run([sys.executable, "-c", CHILD, arguments], capture_output=True, text=True, check=False)


def test_child_of_an_exited_parent_exits() -> None:
    assert child(os.getpid()).stdout == "alive\n"
    orphan = child(os.getppid())  # the pid is not that of its parent
    assert (orphan.returncode, orphan.stdout) == (1, "")
