"""Files and connections that user code opens: files of the form file.py:Name, their neighbours, packages, notebooks.

A backtest hands out past bars only; what user code reads from elsewhere may hold later prices. Python reports opened
files through its audit hooks (PEP 578). Libraries that open files in C or C++ are not seen.

All parts are watched from the moment at which the first one is imported, since a file that is read on import, or once
for all calls, is not read again by an audit in the same process.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import traceback
from types import FrameType
from typing import NamedTuple

MODULE_PREFIX = "finrl_pod_user_"  # of the names of modules made of user files
OUR_PACKAGES = {"finrl_pod", "finrl_pod_app", "finrl_pod_envs", "finrl_pod_strategies"}
IMPORTED_PACKAGES: set[str] = set()  # of custom parts named package.module:Name
CODE = (".py", ".pyc", ".pyd", ".so", ".dll", ".dylib")
CONNECTIONS = {
    *("socket.connect", "urllib.Request", "sqlite3.connect"),
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"),
}
_PREFIXES = tuple(os.path.abspath(path) + os.sep for path in (sys.prefix, sys.base_prefix))  # the Python installation
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/share/zoneinfo/")
_EMPTIED = os.O_TRUNC | os.O_EXCL  # flags of files that are new or made empty: nothing can be read
_NATIVE = "finrl_pod.native"  # reads and compiles the sources of kernels


class OpenedFile(NamedTuple):
    """A file or connection that user code opened.

    module, reader: name and file of the module that our code called. part: its function or class, "" on import.
    target: absolute path of a file, or a connection.
    """

    module: str
    reader: str
    part: str
    target: str


_last_reads: dict[OpenedFile, int] = {}  # and the number of the last time
_numbers = itertools.count()
_watching = False


def watch() -> None:
    """Record what user code opens from now on, directly or through libraries.

    Modules, files that are only written, and files of the Python installation do not count.
    """
    global _watching
    if not _watching:
        sys.addaudithook(_record)  # Python cannot remove it again
        _watching = True


def number() -> int:
    """A number above the numbers of all files opened before."""
    return next(_numbers)


def opened_files(first_number: int = 0) -> tuple[OpenedFile, ...]:
    """What user code has opened in this process, after `number()` returned `first_number`; each file once."""
    return tuple(entry for entry, last in _last_reads.items() if last >= first_number)


def _record(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open" and event not in CONNECTIONS:
        return
    target = _read_path(arguments) if event == "open" else f"{event} {arguments[0] if arguments else ''}".strip()
    if target is None:
        return
    user = _user_frame(sys._getframe(1))
    if user is None or target == os.path.abspath(user.f_code.co_filename):
        return
    reader = user.f_code.co_filename
    reader_folder = os.path.dirname(os.path.abspath(reader)) + os.sep
    is_data = not target.startswith(_SYSTEM) and not _is_installed(target)
    if event != "open" or is_data or target.startswith(reader_folder):
        owner = user.f_locals.get("self")
        part = user.f_code.co_qualname.partition(".")[0] if owner is None else type(owner).__name__
        entry = OpenedFile(str(user.f_globals.get("__name__", "")), reader, part.replace("<module>", ""), target)
        _last_reads[entry] = next(_numbers)


def _read_path(arguments: tuple[object, ...]) -> str | None:
    """Absolute path of a data file that is read, else None. arguments: path, mode and flags of the event "open"."""
    path, mode, flags = (*arguments, None, None, None)[:3]
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str) or path.endswith(CODE):
        return None
    if isinstance(mode, str) and not set("r+") & set(mode):
        return None
    flags = flags if isinstance(flags, int) else os.O_RDONLY
    is_written_only = flags & _EMPTIED or flags & (os.O_WRONLY | os.O_RDWR) == os.O_WRONLY
    return None if is_written_only else os.path.abspath(path)


@functools.lru_cache(4096)
def _is_installed(file: str) -> bool:
    """Whether a file belongs to Python or an installed package.

    Packages also lie outside `sys.prefix`: packages of `pip install --user` and `--target`, of Homebrew, of PYTHONPATH.
    """
    return file.startswith(_PREFIXES) or any(
        file.startswith(os.path.join(folder, "")) and _holds_packages(folder) for folder in sys.path if folder
    )


@functools.cache
def _holds_packages(folder: str) -> bool:
    """Whether installers put packages into a folder of `sys.path`. The current folder also holds the user's files."""
    try:
        return folder != os.getcwd() and any(entry.endswith(".dist-info") for entry in os.listdir(folder))
    except OSError:
        return False


def _user_frame(frame: FrameType) -> FrameType | None:
    """The frame of the user code that our code called and that opens something at a frame, directly or not.

    If it calls its neighbours, it is the reader. What installed libraries read when they are imported does not count.
    """
    user: FrameType | None = None
    library = False  # whether the frame before this one is of an installed library
    for current, _ in traceback.walk_stack(frame):
        name = str(current.f_globals.get("__name__", ""))
        file = current.f_code.co_filename
        package = name.partition(".")[0]
        if package in OUR_PACKAGES:
            if user is not None:
                return user
            if name.startswith(_NATIVE):
                return None
            library = False
        elif name.startswith(MODULE_PREFIX) or package in IMPORTED_PACKAGES or name == "__main__":
            user = current
        elif file.startswith("<frozen importlib"):
            if library and user is None:
                return None
        elif _is_installed(file) or file.startswith("<frozen") or file == "<string>":
            library = True
        else:
            user = current
    return None
