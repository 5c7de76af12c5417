"""Child processes exit with their parent, even if it exited before the child registered; no import swallows Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, sys, time
from finrl_pod.process import die_with_parent
die_with_parent(json.loads(sys.argv[1]))
print("alive")
"""

# What Cython's modules do with exceptions while they start.
SWALLOWING = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    SECOND
    time.sleep(0.01)
except BaseException as error:
    seen = type(error).__name__
else:
    seen = None
"""
IMPORTING = """
import time
from finrl_pod.process import keep_interrupts
keep_interrupts()
import swallowing
try:
    time.sleep(10)
except KeyboardInterrupt:
    print(swallowing.seen, "raised")
else:
    print(swallowing.seen, "lost")
"""


def child(pid: int) -> subprocess.CompletedProcess[str]:
    arguments = f'{{"pid": {pid}, "main_thread": true}}'
    return subprocess.run([sys.executable, "-c", CHILD, arguments], capture_output=True, text=True, check=False)


def test_child_of_an_exited_parent_exits() -> None:
    assert child(os.getpid()).stdout == "alive\n"
    orphan = child(os.getppid())  # the pid is not that of its parent
    assert (orphan.returncode, orphan.stdout) == (1, "")


@pytest.mark.parametrize(
    ("second", "output"),
    [("pass", "None raised"), ("os.kill(os.getpid(), signal.SIGINT)", "KeyboardInterrupt lost")],
    ids=["first", "second"],
)
def test_ctrl_c_waits_for_the_end_of_an_import_once(tmp_path: Path, second: str, output: str) -> None:
    (tmp_path / "swallowing.py").write_text(SWALLOWING.replace("SECOND", second))
    code = IMPORTING if second == "pass" else IMPORTING.replace("sleep(10)", "sleep(0.3)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == output


def test_ignored_interrupts_stay_ignored() -> None:
    code = (
        "import signal; from finrl_pod.process import keep_interrupts; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "keep_interrupts(); print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
