"""Compiles a C++ source once per machine, keeps the library in the user cache and loads it.

Kernels are optional: without a compiler, or with FINRL_POD_NATIVE=0, `load` returns None and the caller uses its torch
or numpy implementation, the definition of the result. Wheels for Linux on x86-64 carry libraries that
`prebuild` compiled for levels of that architecture; the highest that the processor has is loaded.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import re
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import finrl_pod.native.device  # noqa: F401  imports torch first, whose OpenMP runtime and threads the kernels share
from finrl_pod.files import HOME_VARIABLE, replace_file
from finrl_pod.native.prebuild import (
    FLAGS,
    LEVELS,
    PREBUILT,
    CompilationError,
    UnusableCompiler,
    ask_compiler,
    compilation_digest,
    compile_source,
    find_compiler,
    prebuilt_name,
    source_files,
)

SWITCH = "FINRL_POD_NATIVE"
VERSION_TIMEOUT_SECONDS = 20.0
_log = logging.getLogger(__name__)
_reporting = threading.Lock()
_failures: dict[str, str] = {}  # reasons by the name of the library, or of the compiler if it is unusable


@functools.cache
def load(source: Path) -> ctypes.CDLL | None:
    """The compiled library of `source`, or None if it is switched off, there is no compiler, or compiling failed.

    A compiler that fails or is too slow is logged as a warning of one sentence.
    """
    if os.environ.get(SWITCH, "1") == "0":
        return None
    library = _open_prebuilt(source)
    if library is None and (compiler := find_compiler()) is not None:
        library = _load_compiled(source, compiler)
    return library


def uncompiled(sources: Sequence[Path]) -> list[Path]:
    """The sources that `load` would compile: neither prebuilt nor cached, with a compiler and not switched off.

    Empty with a compiler that does not run; `load` warns about it.
    """
    compiler = find_compiler()
    if compiler is None or os.environ.get(SWITCH, "1") == "0" or not _version(compiler):
        return []
    return [x for x in sources if not prebuilt_libraries(x) and _cached(_library_name(x, compiler)) is None]


def compile_sources(sources: Sequence[Path]) -> None:
    """Compile sources into the cache, on all cores; a failure is logged as `load` does."""
    compiler = find_compiler()
    if compiler is None:
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: _load_compiled(source, compiler), sources))


def cache_folder() -> Path:
    """Folder that compiled libraries are written to.

    FINRL_POD_HOME/kernels if that is set, else $XDG_CACHE_HOME/finrl_pod, by default ~/.cache/finrl_pod, from which
    they are read in both cases.
    """
    home = os.environ.get(HOME_VARIABLE)
    return Path(home) / "kernels" if home else _user_cache()


def _user_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "finrl_pod"


def _cached(name: str) -> Path | None:
    return next((path for folder in (cache_folder(), _user_cache()) if (path := folder / name).exists()), None)


def _load_compiled(source: Path, compiler: str) -> ctypes.CDLL | None:
    """The cached library, else a compiled one; None if compiling fails, or failed before in this process."""
    name = failure_key = _library_name(source, compiler)
    try:
        if (cached := _cached(name)) is not None:
            return ctypes.CDLL(str(cached))
        return None if _failures.keys() & {name, compiler} else _compile(source, compiler, name)
    except UnusableCompiler as error:
        failure_key = compiler
        reason = str(error)
    except (OSError, CompilationError) as error:
        reason = str(error)
    with _reporting:
        if reason not in _failures.values():  # what fails for every source is reported once
            _log.warning("%s is not compiled, and slower plain code runs in its place: %s", source.name, reason)
        _failures[failure_key] = reason
    return None


def _compile(source: Path, compiler: str, name: str) -> ctypes.CDLL:
    """Compile a library, write it to the cache under its name, and load it."""
    cached = cache_folder() / name
    with tempfile.TemporaryDirectory() as scratch:
        library_path = Path(scratch) / name
        compile_source(source, library_path, compiler)
        try:
            cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(cached, library_path.read_bytes())
        except OSError:  # the cache cannot be written: the next process compiles again
            return ctypes.CDLL(str(library_path))
    return ctypes.CDLL(str(cached))


def _open_prebuilt(source: Path) -> ctypes.CDLL | None:
    """The library of the highest level that this processor has, or None if there is none of this very source."""
    for library in prebuilt_libraries(source):
        try:
            return ctypes.CDLL(str(library))
        except OSError as error:  # a library that it needs is missing
            _log.warning("%s cannot be loaded: %s", library, error)
    return None


def is_prebuilt(source: Path) -> bool:
    """Whether the wheel has a library of this very source that can be loaded here."""
    return _open_prebuilt(source) is not None


def prebuilt_libraries(source: Path) -> list[Path]:
    """Libraries of the wheel that run on this processor, the highest level first."""
    features = _processor_features()
    levels = [level for level, level_features in LEVELS.items() if level_features <= features]
    return [path for level in levels if (path := PREBUILT / prebuilt_name(source, level)).exists()]


def _processor_features() -> frozenset[str]:
    return frozenset(next((line for line in _processor_lines() if line.startswith("flags")), "").split())


def _library_name(source: Path, compiler: str) -> str:
    """File name of a library in the cache, with the digest of everything that it depends on."""
    digest = compilation_digest(source, *FLAGS, _version(compiler), "".join(_processor_lines()))
    return f"{source.stem}-{digest}.so"


@functools.cache
def _version(compiler: str) -> str:
    """What a compiler says about its version; empty if it does not run."""
    try:
        return ask_compiler(compiler, "--version", timeout=VERSION_TIMEOUT_SECONDS).decode(errors="replace")
    except CompilationError:
        return ""


def _processor_lines() -> list[str]:
    """Processor model and features; -march=native depends on them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [platform.processor()]
    return [line for line in lines if line.startswith(("model name", "flags"))]


# ---------------------------------------------------------------------- argument structs

_NUMBERS: dict[str, Any] = {"int64_t": ctypes.c_int64, "double": ctypes.c_double}


@functools.cache
def argument_struct(source: Path, name: str) -> type[ctypes.Structure]:
    """The ctypes class of a C++ struct, from its declaration in `source` or a header.

    Fields are int64_t, double, pointers, other such structs, and arrays of these; array lengths are numbers, constants
    of type int64_t, and sums of both.
    """
    text = "\n".join(path.read_text(encoding="utf-8") for path in source_files(source))
    struct = re.search(rf"^struct {name}(?: : (\w+))? \{{\n(.*?)^\}};", text, re.MULTILINE | re.DOTALL)
    assert struct is not None, f"{source.name} declares no struct {name}"
    base, body = struct.groups()

    def length_of(term: str) -> int:
        return int(term) if term.isdigit() else int(re.findall(rf"constexpr int64_t {term} = (\d+)", text)[0])

    fields = []
    for kind, declarators in re.findall(r"(?:const\s+)?(\w+)([^;]+);", re.sub(r"//.*", "", body)):
        for declarator in declarators.split(","):
            pointer, field, lengths = re.findall(r"(\*?)\s*(\w+)(.*)", declarator)[0]
            c_type = ctypes.c_void_p if pointer else _NUMBERS.get(kind) or argument_struct(source, kind)
            for length in reversed(re.findall(r"\[(.*?)\]", lengths)):
                c_type *= sum(length_of(term.strip()) for term in length.split("+"))
            fields.append((field, c_type))
    return type(name, (argument_struct(source, base) if base else ctypes.Structure,), {"_fields_": fields})
