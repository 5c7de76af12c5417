"""Kernels are built once, kept, and never needed."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import pytest

from finrl_pod.native import library

needs_compiler = pytest.mark.skipif(library.find_compiler() is None, reason="needs a C++ compiler")
TWICE = 'extern "C" double twice(double x) { return 2 * x; }\n'


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(library.SWITCH, "1")


def source(folder: Path, text: str = TWICE) -> Path:
    path = folder / "twice.cpp"
    path.write_text(text)
    library.load.cache_clear()
    return path


def twice(of: ctypes.CDLL) -> float:
    of.twice.restype, of.twice.argtypes = ctypes.c_double, [ctypes.c_double]
    return float(of.twice(21.0))


@needs_compiler
def test_a_source_is_compiled_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(tmp_path)
    first = library.load(path)
    assert first is not None
    assert twice(first) == 42.0
    (kept,) = library.cache_folder().iterdir()
    written = kept.stat().st_mtime_ns
    library.load.cache_clear()
    assert library.load(path) is not None
    assert kept.stat().st_mtime_ns == written
    source(tmp_path, TWICE.replace("2 * x", "x + x"))
    library.load(path)
    assert len(list(library.cache_folder().iterdir())) == 2  # another source is another library


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    loaded = library.load(source(tmp_path))
    assert loaded is not None
    assert twice(loaded) == 42.0


@needs_compiler
def test_what_does_not_compile_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert library.load(source(tmp_path, "this is not C++\n")) is None
    assert "twice.cpp could not be compiled" in caplog.text
    assert not library.cache_folder().exists()


def test_switched_off_or_without_a_compiler_there_is_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source(tmp_path)
    monkeypatch.setenv(library.SWITCH, "0")
    assert library.load(path) is None
    monkeypatch.setenv(library.SWITCH, "1")
    monkeypatch.setattr(library, "find_compiler", lambda: None)
    library.load.cache_clear()
    assert library.load(path) is None
