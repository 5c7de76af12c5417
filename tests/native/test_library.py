"""Compiling, caching and loading of kernels, argument structs, and warnings in all sources."""

from __future__ import annotations

import ctypes
import logging
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from finrl_pod.native import library
from finrl_pod.native import prebuild as prebuild_module
from finrl_pod.native.prebuild import (
    FLAGS,
    INCLUDE,
    NATIVE,
    CompilationError,
    check_compiler,
    find_compiler,
    prebuild,
    prebuilt_name,
)

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("finrl_pod", "envs") for path in (ROOT / folder).rglob("*.cpp"))
DOUBLE = 'extern "C" double twice(double x) { return 2 * x; }\n'
STRUCTS = """#include <cstdint>
constexpr int64_t WIDTH = 2;
struct Inner {
  int64_t size;
};
struct Sizes {
  int64_t rows, columns[2][WIDTH + 1];  // a comment, with a comma
};
struct Values : Sizes {
  double scale;
  const float *data, *weights;
  Inner inner;
};
extern "C" int sizeof_sizes() { return sizeof(Sizes); }
extern "C" int sizeof_values() { return sizeof(Values); }
extern "C" double read(const Values* x) {
  return x->rows + x->columns[1][2] + x->inner.size + x->scale + x->weights[1] + (x->data ? 1000 : 0);
}
"""
Writer = Callable[[str], Path]


@pytest.fixture
def write_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Writes a C++ source; kernels are cached in a folder of the test."""
    monkeypatch.delenv("FINRL_POD_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(library.SWITCH, "1")
    monkeypatch.setattr(library, "_failures", {})

    def write(text: str) -> Path:
        path = tmp_path / "source.cpp"
        path.write_text(text)
        library.load.cache_clear()
        return path

    return write


def call_twice(loaded: ctypes.CDLL | None) -> float:
    assert loaded is not None
    loaded.twice.restype, loaded.twice.argtypes = ctypes.c_double, [ctypes.c_double]
    return float(loaded.twice(21.0))


@needs_compiler
def test_source_is_compiled_once_and_then_loaded_from_the_cache(write_source: Writer) -> None:
    path = write_source(DOUBLE)
    assert call_twice(library.load(path)) == 42.0
    (cached,) = library.cache_folder().iterdir()
    written = cached.stat().st_mtime_ns
    library.load.cache_clear()
    assert library.load(path) is not None
    assert cached.stat().st_mtime_ns == written
    library.load(write_source(DOUBLE.replace("2 * x", "x + x")))
    assert len(list(library.cache_folder().iterdir())) == 2  # a changed source gets a separate library


@needs_compiler
def test_home_moves_the_cache_and_libraries_of_the_other_are_still_found(
    write_source: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.load(write_source(DOUBLE)) is not None
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    assert library.cache_folder() == tmp_path / "home" / "kernels"
    assert library.load(write_source(DOUBLE)) is not None
    assert not library.cache_folder().exists()
    assert library.load(write_source(DOUBLE.replace("2 * x", "x + x"))) is not None
    assert len(list(library.cache_folder().iterdir())) == 1


@needs_compiler
def test_sources_are_compiled_ahead(write_source: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_source(DOUBLE)
    assert library.uncompiled([path]) == [path]
    library.compile_sources([path])
    assert library.uncompiled([path]) == []
    assert call_twice(library.load(path)) == 42.0
    changed = write_source(DOUBLE.replace("2 * x", "x + x"))
    assert library.uncompiled([changed]) == [changed]
    monkeypatch.setenv(library.SWITCH, "0")
    assert library.uncompiled([changed]) == []


@pytest.fixture
def broken_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes $CXX a program that has a version, notes each source that it gets, and then runs a line of shell."""
    path = tmp_path / "broken"

    def write(line: str) -> Path:
        script = ["#!/bin/sh", 'case "$*" in *--version*) echo 1.0; exit 0;; esac', f'echo "$*" >> {path}.asked', line]
        path.write_text("\n".join(script) + "\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return write


def warnings_of(sources: list[Path], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is logged when sources are compiled ahead and then loaded, without success."""
    with caplog.at_level(logging.WARNING):
        library.compile_sources(sources)
        assert [library.load(source) for source in sources] == [None] * len(sources)
    return [record.getMessage() for record in caplog.records]


def two_sources(write_source: Writer) -> list[Path]:
    first = write_source(DOUBLE)
    second = first.with_name("second.cpp")
    second.write_text(DOUBLE)
    return [first, second]


def test_a_compiler_that_does_not_run_stops_nothing_and_is_reported_once(
    write_source: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    sources = two_sources(write_source)
    assert library.uncompiled(sources) == []
    (message,) = warnings_of(sources, caplog)
    assert "source.cpp" in message or "second.cpp" in message
    with pytest.raises(CompilationError, match="exit 1"):
        check_compiler(str(broken))


def test_a_failed_compilation_is_one_sentence_and_not_repeated(
    write_source: Writer, broken_compiler: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    compiler = broken_compiler(
        "echo /a/folder/x.cpp: note >&2; printf '/a/folder/x.cpp:1: error: %03000d' 0 >&2; exit 1"
    )
    (message,) = warnings_of(two_sources(write_source), caplog)
    assert message.endswith("0...")
    assert "failed: x.cpp:1: error: 000" in message
    assert len(message) < 200 + len(str(compiler))
    assert "-march" not in message
    assert len(Path(f"{compiler}.asked").read_text().splitlines()) == 2  # not again when they are loaded


@pytest.mark.slow
def test_a_compiler_that_is_too_slow_is_not_waited_for_twice(
    write_source: Writer,
    broken_compiler: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiler = broken_compiler("exec sleep 60")
    monkeypatch.setattr(prebuild_module.compile_source, "__defaults__", (NATIVE, 0.5))
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    (message,) = warnings_of(two_sources(write_source), caplog)
    assert "took more than" in message
    assert "-march" not in message
    assert len(Path(f"{compiler}.asked").read_text().splitlines()) == 1


@needs_compiler
def test_compilation_works_with_an_unwritable_cache(
    write_source: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    assert call_twice(library.load(write_source(DOUBLE))) == 42.0


@needs_compiler
def test_failed_compilation_logs_a_warning(write_source: Writer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert library.load(write_source("this is not C++\n")) is None
    assert "source.cpp is not compiled" in caplog.text
    assert not library.cache_folder().exists()


def test_no_library_when_switched_off_or_without_a_compiler(
    write_source: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_source(DOUBLE)
    monkeypatch.setenv(library.SWITCH, "0")
    assert library.load(path) is None
    monkeypatch.setenv(library.SWITCH, "1")
    monkeypatch.setattr(library, "find_compiler", lambda: None)
    library.load.cache_clear()
    assert library.load(path) is None


@needs_compiler
def test_argument_structs_have_the_layout_of_the_declaration(write_source: Writer) -> None:
    path = write_source(STRUCTS)
    kernel = library.load(path)
    assert kernel is not None
    values = library.argument_struct(path, "Values")
    for size, struct in ((kernel.sizeof_sizes(), values.__base__), (kernel.sizeof_values(), values)):
        assert size == ctypes.sizeof(struct)
    data = (ctypes.c_float * 2)(0.5, 0.25)
    x = values(rows=3, scale=2.0, weights=ctypes.addressof(data))
    x.columns[1][2] = 7
    x.inner.size = 5
    kernel.read.restype = ctypes.c_double
    assert kernel.read(ctypes.byref(x)) == 3 + 7 + 5 + 2.0 + 0.25


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=[path.stem for path in SOURCES])
def test_all_sources_compile_without_warnings(source: Path) -> None:
    """Without optimisation, whose warnings depend on the compiler's version."""
    compiler = find_compiler()
    assert compiler is not None
    flags = ["-march=native", *(flag for flag in FLAGS if flag != "-O3")]
    command = [compiler, *flags, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{INCLUDE}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_sources_were_found() -> None:
    assert len(SOURCES) >= 8


# ---------------------------------------------------------------------- libraries compiled ahead


@pytest.fixture
def prebuilt(write_source: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source with prebuilt libraries, on a machine without a compiler."""
    path, compiler = write_source(DOUBLE), find_compiler()
    assert compiler is not None
    prebuild([path], tmp_path / "kernels", compiler)
    monkeypatch.setattr(library, "PREBUILT", tmp_path / "kernels")
    monkeypatch.setattr(library, "find_compiler", lambda: None)
    return path


def test_a_wheel_without_its_kernels_is_refused_in_one_sentence(
    broken_compiler: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = broken_compiler("exec sleep 60")
    monkeypatch.setattr(prebuild_module, "PREBUILD_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    for kind in ("builders.hooks.plugin.BuildHookInterface", "metadata.plugin.MetadataHookInterface"):
        module, _, name = f"hatchling.{kind}".rpartition(".")  # hatchling is in the environments of builds only
        monkeypatch.setitem(sys.modules, f"{module}.interface", SimpleNamespace(**{name: object}))
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["KernelHook"]()
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    hook.build_config = SimpleNamespace(packages=["finrl_pod"])
    hook.app = SimpleNamespace(abort=sys.exit)
    with pytest.raises(SystemExit, match="broken took more than"):
        hook.initialize("standard", {})
    assert not hook._folder.exists()
    assert len(Path(f"{compiler}.asked").read_text().splitlines()) <= 2  # the second had begun at the failure


@needs_compiler
def test_prebuilt_library_of_the_highest_level_is_loaded(prebuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for features, name in (
        (library.LEVELS["x86-64-v4"], "x86-64-v4"),
        (library.LEVELS["x86-64-v4"] - {"avx512vl"}, "x86-64-v3"),
    ):
        opened = []
        monkeypatch.setattr(library, "_processor_features", lambda features=features: features)
        monkeypatch.setattr(ctypes, "CDLL", lambda path, opened=opened: opened.append(path))
        library._open_prebuilt(prebuilt)
        assert [name in path for path in opened] == [True]
    monkeypatch.undo()


@needs_compiler
def test_prebuilt_library_runs_without_a_compiler(prebuilt: Path) -> None:
    if library.LEVELS["x86-64-v3"] <= library._processor_features():
        assert call_twice(library.load(prebuilt)) == 42.0


def test_prebuilt_names_are_those_of_any_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In site-packages the shared headers sort before those of the environments, in a checkout after them."""
    names = {source.stem: prebuilt_name(source, "x86-64-v3") for source in SOURCES}
    for folder in ("finrl_pod", "envs/finrl_pod_envs"):
        shutil.copytree(ROOT / folder, tmp_path / Path(folder).name, ignore=shutil.ignore_patterns("*.py", "*.parquet"))
    monkeypatch.setattr(prebuild_module, "INCLUDE", tmp_path / "finrl_pod/native")
    copies = sorted(tmp_path.rglob("*.cpp"))
    assert {source.stem: prebuilt_name(source, "x86-64-v3") for source in copies} == names
    header = tmp_path / "finrl_pod_envs/market.h"
    header.rename(header.with_name("renamed.h"))
    changed = {source.stem for source in copies if prebuilt_name(source, "x86-64-v3") != names[source.stem]}
    assert changed == {source.stem for source in (ROOT / "envs").rglob("*.cpp")}


@needs_compiler
def test_prebuilt_library_of_another_source_or_processor_is_not_used(
    prebuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_processor_features", frozenset)
    assert library.load(prebuilt) is None
    monkeypatch.setattr(library, "_processor_features", lambda: library.LEVELS["x86-64-v4"])
    assert library.prebuilt_libraries(prebuilt)
    prebuilt.write_text(DOUBLE.replace("2 * x", "3 * x"))
    assert not library.prebuilt_libraries(prebuilt)


@needs_compiler
def test_prebuilt_library_that_cannot_be_loaded_is_left_out(
    prebuilt: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "_processor_features", lambda: library.LEVELS["x86-64-v4"])
    for file in (prebuilt.parent / "kernels").iterdir():
        file.write_bytes(b"not a library")
    with caplog.at_level(logging.WARNING):
        assert library.load(prebuilt) is None
    assert "cannot be loaded" in caplog.text
