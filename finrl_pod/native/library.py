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

import finrl_pod.native.threads  # noqa: F401  imports torch first, whose OpenMP runtime and threads the kernels share
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
def load(source: Path, *structures: type[ctypes.Structure]) -> ctypes.CDLL | None:
    """The compiled library of `source`, or None if it is switched off, there is no compiler, or compiling failed.

    structures: the argument structs that its functions take; `check_layout` compares them with the library. A
    compiler that fails or is too slow is logged as a warning of one sentence.
    """
    if os.environ.get(SWITCH, "1") == "0":
        return None
    library = _open_prebuilt(source)
    if library is None and (compiler := find_compiler()) is not None:
        library = _load_compiled(source, compiler)
    if library is not None:
        check_layout(library, source, *structures)
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

_KINDS: dict[Any, str] = {ctypes.c_int64: "int64_t", ctypes.c_double: "double", ctypes.c_void_p: "pointer"}


def check_layout(library: ctypes.CDLL, source: Path, *structures: type[ctypes.Structure]) -> None:
    """Raise RuntimeError unless each ctypes structure has the fields and the size of the C++ struct of its name.

    Names and kinds of the fields are compared with the declaration in `source` or its headers, in order; the size with
    what the library reports (`EXPORT_SIZE` in `layout.h`). Leading underscores of the Python name are ignored.
    """
    text = "\n".join(path.read_text(encoding="utf-8") for path in source_files(source))
    for structure in structures:
        name = structure.__name__.lstrip("_")
        size_of = getattr(library, f"sizeof_{name}", None)
        if size_of is None:
            raise RuntimeError(f"{source.name} does not export the size of struct {name}; add EXPORT_SIZE({name})")
        size_of.restype = ctypes.c_int64
        cpp_fields = _declared_fields(text, name)
        python_fields = _described_fields(structure)
        if cpp_fields != python_fields:
            different = [pair for pair in zip(cpp_fields, python_fields, strict=False) if pair[0] != pair[1]]
            first = different[0] if different else (len(cpp_fields), len(python_fields))
            raise RuntimeError(
                f"struct {name} differs between {source.name} and Python, first {first[0]} against {first[1]}; "
                "declare the same fields in both, in the same order"
            )
        if size_of() != ctypes.sizeof(structure):
            raise RuntimeError(
                f"struct {name} has {size_of()} bytes in {source.name} but {ctypes.sizeof(structure)} in Python; "
                "make the lengths of its arrays equal"
            )


def _described_fields(structure: type[ctypes.Structure]) -> list[tuple[str, str]]:
    """Name and kind of each field of a ctypes structure, the fields of its base first."""
    fields = []
    for base in reversed(structure.__mro__):
        for name, kind, *_ in vars(base).get("_fields_", ()):
            while issubclass(kind, ctypes.Array):
                kind = kind._type_
            fields.append((name, _KINDS.get(kind, kind.__name__.lstrip("_"))))
    return fields


def _declared_fields(text: str, name: str) -> list[tuple[str, str]]:
    """Name and kind of each field of a C++ struct of plain data, base fields first; empty if it is not there."""
    found = re.search(rf"^struct {name}(?: : (\w+))? \{{\n(.*?)^\}};", text, re.MULTILINE | re.DOTALL)
    if found is None:
        return []
    base, body = found.groups()
    fields = _declared_fields(text, base) if base else []
    for declaration in re.sub(r"//.*", "", body).split(";"):
        of_type = re.match(r"\s*(?:const\s+)?(\w+)(.*)", declaration, re.DOTALL)
        for field in of_type[2].split(",") if of_type else ():
            pointer, word = re.match(r"\s*(\*?)\s*(\w+)", field).groups()  # type: ignore[union-attr]
            fields.append((word, "pointer" if pointer else of_type[1]))  # type: ignore[index]
    return fields
