"""Compiles kernels: for this processor when they are first used, or for wheels ahead, for levels of x86-64.

This file needs the standard library alone, since wheels are built without torch.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
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
PREBUILD_TIMEOUT_SECONDS = 600  # a wheel without a kernel is worse than a slow build
MAX_REASON = 80  # characters of a compiler message


class CompilationError(Exception):
    """A source could not be compiled; the message is one sentence."""


class UnusableCompiler(CompilationError):
    """The compiler does not run or is too slow, so that no other source need be tried."""


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, else g++, else clang++."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def compile_source(
    source: Path, library: Path, compiler: str, architecture: str = NATIVE, timeout: float = COMPILE_TIMEOUT_SECONDS
) -> None:
    """Compile a source. Raises CompilationError if that fails or takes too long."""
    arguments = (*FLAGS, f"-march={architecture}", f"-I{INCLUDE}", str(source), "-o", str(library))
    ask_compiler(compiler, *arguments, timeout=timeout)


def check_compiler(compiler: str) -> None:
    """Compile one line with the flags and headers of the kernels. Raises CompilationError if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "trial.cpp"
        source.write_text('#include "simd.h"\n', encoding="utf-8")
        compile_source(source, source.with_suffix(".so"), compiler)


def ask_compiler(compiler: str, *arguments: str, timeout: float) -> bytes:
    """What the compiler prints. Raises CompilationError if it does not run, fails or takes too long."""
    command = [compiler, *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=timeout).stdout
    except subprocess.TimeoutExpired:
        raise UnusableCompiler(f"{compiler} took more than {timeout:.0f} seconds") from None
    except subprocess.CalledProcessError as error:
        raise CompilationError(f"{compiler} failed: {_reason(error.stderr) or f'exit {error.returncode}'}") from None
    except OSError as error:
        raise UnusableCompiler(f"{compiler} does not run: {error.strerror}") from None


def _reason(output: bytes) -> str:
    """The first error in what a compiler prints, else its first line, without folders; cut to 80 characters."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    line = re.sub(r"^/.*?/(?=[^/]*:)", "", next((line for line in lines if "error" in line), lines[0] if lines else ""))
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 3]}..."


def prebuild(sources: Sequence[Path], folder: Path, compiler: str) -> list[Path]:
    """Compile sources for each level into `folder`, on all cores; returns the libraries.

    Raises CompilationError if that fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(source, folder / prebuilt_name(source, level), compiler, level) for source in sources for level in LEVELS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = [pool.submit(compile_source, *job, PREBUILD_TIMEOUT_SECONDS) for job in jobs]
        try:
            for done in pending:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)  # after the first failure no other source need be tried
    return [library for _, library, *_ in jobs]


def prebuilt_name(source: Path, level: str) -> str:
    """File name of a library: it names the source, the level, and the digest of all that was compiled."""
    return f"{source.stem}-{level}-{compilation_digest(source, *FLAGS, level)}.so"


def compilation_digest(source: Path, *settings: str) -> str:
    """20 hexadecimal digits of a source, its headers and settings: of names and contents, wherever the files lie."""
    digest = hashlib.sha256()
    for path in source_files(source):
        for part in (path.name.encode(), path.read_bytes()):
            digest.update(b"%d:" % len(part) + part)
    digest.update("\0".join(settings).encode())
    return digest.hexdigest()[:20]


def source_files(source: Path) -> list[Path]:
    """The source, then the headers in its folder and the shared headers in order of their names."""
    headers = {*INCLUDE.glob("*.h"), *source.parent.glob("*.h")}
    return [source, *sorted(headers, key=lambda path: (path.name, path.parent != source.parent))]
