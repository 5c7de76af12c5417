"""Whether Ray could start a cluster on this machine, checked without starting one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import NamedTuple

from finrl_pod.files import reserve_room

LOOPBACK = "127.0.0.1"
SERVERS = ("core/src/ray/gcs/gcs_server", "core/src/ray/raylet/raylet")  # in the package
VERSION_SECONDS = 20.0  # for a server to print its version
SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107  # of sun_path in sockaddr_un, without the final zero
# The longest path of a socket below the temporary folder of Ray; the last number is a process id.
SOCKET = "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"


class RayFault(NamedTuple):
    """Why Ray cannot start, and what to do about it."""

    reason: str
    fix: str


def ray_fault() -> RayFault | None:
    """What would keep Ray from starting here; None if nothing is known, or Ray is not installed."""
    spec = util.find_spec("ray")
    if spec is None or spec.origin is None:
        return None
    way_out = "until then use --engine processes"
    for server in SERVERS:
        if reason := _server_fault(Path(spec.origin).parent / server):
            return RayFault(f"{Path(server).name} does not run: {reason}", f"install Ray again; {way_out}")
    try:
        socket.create_server((LOOPBACK, 0)).close()
    except OSError as error:
        fix = f"allow programs to listen on {LOOPBACK}; {way_out}"
        return RayFault(f"nothing may listen on {LOOPBACK}: {error.strerror or error}", fix)
    folder = temporary_folder()
    length = len(os.fsencode(folder / SOCKET))
    if length > SOCKET_PATH_BYTES:
        fix = f"set RAY_TMPDIR to a folder with a shorter path; {way_out}"
        return RayFault(f"paths of sockets in {folder} have {length} bytes, at most {SOCKET_PATH_BYTES} work", fix)
    try:
        reserve_room(folder)
    except OSError as error:
        fix = f"free space or make the folder writable, or set RAY_TMPDIR to another one; {way_out}"
        return RayFault(f"{error.filename} cannot be written: {error.strerror}", fix)
    return None


def temporary_folder() -> Path:
    """The folder of the sessions of Ray."""
    default = os.environ.get("TMPDIR", "/tmp") if sys.platform == "linux" else "/tmp"
    return Path(os.environ.get("RAY_TMPDIR", default)) / "ray"


def _server_fault(program: Path) -> str:
    """Why a server does not run, empty if it does."""
    try:
        process = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no version within {VERSION_SECONDS:g} s"
    except OSError as error:
        return str(error.strerror)
    lines = process.stderr.strip().splitlines()
    return "" if process.returncode == 0 else (lines or [f"it ended with code {process.returncode}"])[-1][:200]
