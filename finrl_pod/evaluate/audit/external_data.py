"""Check for outside information: files and connections that a strategy's code opens, and implausible growth.

A backtest hands out past bars only; what a strategy reads from elsewhere may hold later prices. Python reports opened
files through its audit hooks (PEP 578). Libraries that open files in C or C++ are not seen.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from finrl_pod.evaluate.audit.pipeline import Finding
from finrl_pod.evaluate.audit.sensitivity import Sensitivity

CHECK = "external data"
ABSURD_GROWTH = 1.1  # annual log growth: the account triples in a year
CODE = (".py", ".pyc", ".pyd", ".so")
CONNECTIONS = ("socket.connect", "urllib.Request", "sqlite3.connect", "subprocess.Popen", "os.system")
SYSTEM = tuple(os.path.abspath(path) + os.sep for path in (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev"))

_active: list[tuple[str, dict[str, None]]] = []  # file of the watched code, what it opened in order
_installed = False


@contextlib.contextmanager
def record_opened(source: Path) -> Iterator[dict[str, None]]:
    """Record in the keys of the yielded dict what code of the file `source` opens, directly or through libraries.

    Modules, files that are only written, and those of the Python installation do not count.
    """
    _install()
    opened: dict[str, None] = {}
    entry = (os.path.abspath(source), opened)
    _active.append(entry)
    try:
        yield opened
    finally:
        _active.remove(entry)


def findings(name: str, opened: dict[str, None]) -> list[Finding]:
    """A warning for each file or connection that the code of a strategy opened."""
    return [
        Finding(
            CHECK, "warn", what, f"{name} opens {what}, which may hold information from after the bar of a decision."
        )
        for what in opened
    ]


def growth_findings(name: str, of: Sensitivity, cost: float) -> list[Finding]:
    """A warning if a strategy grows at an absurd rate at a cost in basis points."""
    growth = dict(zip(of.costs, of.growth, strict=True)).get(cost, of.growth[0])
    if growth <= ABSURD_GROWTH:
        return []
    message = (
        f"{name} multiplies the account by {math.exp(growth):.1f} a year, and no known strategy of this kind does: "
        "look for information from the future."
    )
    return [Finding(CHECK, "warn", "growth", message, value=growth)]


def _install() -> None:
    """Add the hook, which Python cannot remove again."""
    global _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _active or (event != "open" and event not in CONNECTIONS):
        return
    what = _opened_file(arguments) if event == "open" else f"{event} {arguments[0] if arguments else ''}".strip()
    if what is None:
        return
    files = {os.path.abspath(code) for code in _code_files(sys._getframe(1))}
    for source, opened in _active:
        if source in files and what != source:
            opened[what] = None


def _opened_file(arguments: tuple[object, ...]) -> str | None:
    """Absolute path of a data file that is read, else None. arguments: path, mode and flags of the event "open"."""
    path, mode = arguments[0], arguments[1] if len(arguments) > 1 else None
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str) or (isinstance(mode, str) and not set("r+") & set(mode)):
        return None
    full = os.path.abspath(path)
    return None if full.endswith(CODE) or full.startswith(SYSTEM) else full


def _code_files(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
