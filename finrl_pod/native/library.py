"""From a C++ source to loaded functions: compiled once for this machine, kept in the user's cache.

Kernels are an addition, never a need: without a compiler, or with FINRL_POD_NATIVE=0, `load` returns None and the
plain torch version beside each kernel does the work.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch  # noqa: F401  loaded first, so that the kernels share its OpenMP and with it its threads

from finrl_pod.files import replace_file

FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",  # nobody reads errno: lets floor and trunc be instructions
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-ffp-contract=fast",
    "-fopenmp",
    "-shared",
    "-fPIC",
)
SWITCH = "FINRL_POD_NATIVE"
SECONDS = 120  # a compiler that takes longer hangs
_log = logging.getLogger(__name__)


@functools.cache
def load(source: Path) -> ctypes.CDLL | None:
    """The functions of `source`, or None where they cannot be had: switched off, no compiler, a compiler's failure.

    A failure of a compiler that is there is logged as a warning, with its first line.
    """
    if os.environ.get(SWITCH, "1") == "0":
        return None
    compiler = find_compiler()
    if compiler is None:
        return None
    try:
        return _open(source, compiler)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("%s could not be compiled and its plain version is used: %s", source.name, _first_line(error))
        return None


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, else g++, else clang++."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def cache_folder() -> Path:
    """Where compiled kernels are kept: $XDG_CACHE_HOME/finrl_pod, by default under ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "finrl_pod"


def _open(source: Path, compiler: str) -> ctypes.CDLL:
    """The library that is named after all that it was made from; compiled if it is not there yet."""
    headers = sorted({*Path(__file__).parent.glob("*.h"), *source.parent.glob("*.h")})
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=SECONDS).stdout
    texts = [path.read_bytes() for path in (source, *headers)]
    made_from = [*texts, version, _processor(), " ".join(FLAGS).encode()]
    name = f"{source.stem}-{hashlib.sha256(b'|'.join(made_from)).hexdigest()[:20]}.so"
    kept = cache_folder() / name
    if kept.exists():
        return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / name
        command = [compiler, *FLAGS, f"-I{Path(__file__).parent}", str(source), "-o", str(fresh)]
        subprocess.run(command, capture_output=True, check=True, timeout=SECONDS)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(kept, fresh.read_bytes())
        except OSError:  # a home that cannot be written: the next process compiles anew
            return ctypes.CDLL(str(fresh))
    return ctypes.CDLL(str(kept))


def _processor() -> bytes:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor().encode()
    return "".join(line for line in lines if line.startswith(("model name", "flags"))).encode()


def _first_line(error: Exception) -> str:
    text = getattr(error, "stderr", None) or str(error).encode()
    return str(text.decode(errors="replace").strip().splitlines()[:1] or [type(error).__name__])
