"""Compiles kernels: for this processor when they are first used, or for wheels ahead, for levels of x86-64.

This file needs the standard library alone, since wheels are built without torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

INCLUDE = Path(__file__).parent  # shared headers
PREBUILT = INCLUDE / "prebuilt"  # in wheels
NATIVE = "native"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fno-math-errno",  # errno is never read: floor and trunc become instructions
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-ffp-contract=fast",
    "-fopenmp",
    "-shared",
    "-fPIC",
)
# Levels of the x86-64 psABI, highest first, and what /proc/cpuinfo calls the features each adds to the one below.
_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})
LEVELS = {"x86-64-v4": _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}, "x86-64-v3": _V3}
COMPILE_TIMEOUT_SECONDS = 120


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, else g++, else clang++."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def compile_source(source: Path, library: Path, compiler: str, architecture: str = NATIVE) -> None:
    """Compile a source. Raises CalledProcessError if that fails."""
    command = [compiler, *FLAGS, f"-march={architecture}", f"-I{INCLUDE}", str(source), "-o", str(library)]
    subprocess.run(command, capture_output=True, check=True, timeout=COMPILE_TIMEOUT_SECONDS)


def prebuild(sources: Sequence[Path], folder: Path, compiler: str) -> list[Path]:
    """Compile sources for each level into `folder`, on all cores; returns the libraries.

    Raises CalledProcessError if that fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(source, folder / prebuilt_name(source, level), level) for source in sources for level in LEVELS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(compile_source, source, library, compiler, level) for source, library, level in jobs]:
            done.result()
    return [library for _, library, _ in jobs]


def prebuilt_name(source: Path, level: str) -> str:
    """File name of a library: it names the source, the level, and a hash of all that was compiled."""
    texts = [path.read_bytes() for path in source_files(source)]
    digest = hashlib.sha256(b"|".join([*texts, " ".join((*FLAGS, level)).encode()])).hexdigest()
    return f"{source.stem}-{level}-{digest[:20]}.so"


def source_files(source: Path) -> list[Path]:
    """The source, the headers in its folder and the shared headers."""
    return [source, *sorted({*INCLUDE.glob("*.h"), *source.parent.glob("*.h")})]
