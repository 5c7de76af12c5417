"""Child processes exit with their parent, even if it exited before the child registered; no import swallows Ctrl-C."""

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

# Compiled modules of numpy.random register types; the third call is one where they swallow what is raised.
IMPORTING = """
import abc, os, signal, sys, time
import numpy
from finrl_pod.process import keep_interrupts
keep_interrupts()
register, calls = abc.ABCMeta.register, []
def interrupted(kind, subclass):
    if sys._getframe(1).f_code.co_filename.startswith("<frozen importlib"):
        calls.append(kind)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
    return register(kind, subclass)
abc.ABCMeta.register = interrupted
try:
    import numpy.random
    time.sleep(1)
except KeyboardInterrupt:
    print("raised")
else:
    print("lost", len(calls))
"""


def child(pid: int) -> subprocess.CompletedProcess[str]:
    arguments = f'{{"pid": {pid}, "main_thread": true}}'
    return subprocess.run([sys.executable, "-c", CHILD, arguments], capture_output=True, text=True, check=False)


def test_child_of_an_exited_parent_exits() -> None:
    assert child(os.getpid()).stdout == "alive\n"
    orphan = child(os.getppid())  # the pid is not that of its parent
    assert (orphan.returncode, orphan.stdout) == (1, "")


def test_ctrl_c_is_not_lost_in_a_compiled_module() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=True)
    assert done.stdout == "raised\n"


def test_ignored_interrupts_stay_ignored() -> None:
    code = (
        "import signal; from finrl_pod.process import keep_interrupts; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "keep_interrupts(); print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
