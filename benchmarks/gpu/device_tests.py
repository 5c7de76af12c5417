"""Runs the tests of tests/gpu where pytest is missing, as it is on many machines with a device.

Knows what those tests use: parametrize, skipif, fixtures of a function or module, raises, MonkeyPatch, tmp_path. What
needs more, such as hypothesis or caplog, is counted as skipped, with the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path("tests/gpu")
_SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|error)")


@dataclass
class Outcome:
    """Counts of tests, and the names of those that failed or were skipped with the reason."""

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def run_tests(folder: Path = FOLDER, seconds: float = 300) -> Outcome:
    """Run the tests of a folder below the current one, by pytest if it is installed."""
    if importlib.util.find_spec("pytest") is not None:
        return _by_pytest(folder, seconds)
    sys.modules["pytest"] = stand_in()
    try:
        outcome = Outcome()
        sys.path.insert(0, os.getcwd())
        for file in sorted(folder.glob("test_*.py")):
            _run_module(".".join(file.with_suffix("").parts), outcome)
        return outcome
    finally:
        sys.path.remove(os.getcwd())
        del sys.modules["pytest"]


def _by_pytest(folder: Path, seconds: float) -> Outcome:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    counts = {what: int(n) for n, what in _SUMMARY.findall((done.stdout.splitlines() or [""])[-1])}
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    skipped = {f"{counts['skipped']} tests": "see pytest -rs"} if counts.get("skipped") else {}
    return Outcome(counts.get("passed", 0), dict.fromkeys(failed, "failed"), skipped)


# ---------------------------------------------------------------------- without pytest


class _Skip(Exception):
    """A test does not apply here."""


def stand_in() -> types.ModuleType:
    """A module with the names of pytest that the tests use."""
    module = types.ModuleType("pytest")
    names: dict[str, Any] = {
        "mark": _Marks(), "fixture": _fixture, "param": _param, "raises": _raises, "skip": _skip,
        "MonkeyPatch": MonkeyPatch, "LogCaptureFixture": object, "CaptureFixture": object,
    }  # fmt: skip
    module.__dict__.update(names)
    return module


class _Marks:
    def __getattr__(self, name: str) -> Any:
        return _Mark(name)


class _Mark:
    """A decorator; alone it marks, called it carries arguments."""

    def __init__(self, name: str, args: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None) -> None:
        self.name, self.args, self.options = name, args, dict(options or {})

    def __call__(self, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and not options and inspect.isfunction(args[0]):
            args[0].__dict__.setdefault("_marks", []).append(self)
            return args[0]
        return _Mark(self.name, args, options)


def _fixture(function: Any = None, *, scope: str = "function", autouse: bool = False) -> Any:
    if function is None:
        return lambda f: _fixture(f, scope=scope, autouse=autouse)
    function._fixture, function._autouse = scope, autouse
    return function


def _param(*values: Any, **_: Any) -> Any:
    return values if len(values) > 1 else values[0]


def _skip(reason: str = "") -> None:
    raise _Skip(reason)


@contextlib.contextmanager
def _raises(kind: type[BaseException], match: str = "") -> Iterator[types.SimpleNamespace]:
    caught = types.SimpleNamespace(value=None)
    try:
        yield caught
    except kind as error:
        caught.value = error
    if caught.value is None:
        raise AssertionError(f"{kind.__name__} was not raised")
    if not re.search(match, str(caught.value)):
        raise AssertionError(f"{caught.value} does not match {match!r}")


class MonkeyPatch:
    """Attributes and environment variables that are restored."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def setattr(self, target: Any, name: str, value: Any) -> None:
        before = getattr(target, name)
        self._undo.append(lambda: setattr(target, name, before))
        setattr(target, name, value)

    def setenv(self, name: str, value: str) -> None:
        self._undo.append(_restores(name))
        os.environ[name] = value

    def delenv(self, name: str, raising: bool = True) -> None:
        self._undo.append(_restores(name))
        if os.environ.pop(name, None) is None and raising:
            raise KeyError(name)

    def undo(self) -> None:
        """Restore everything, the last change first."""
        while self._undo:
            self._undo.pop()()

    @classmethod
    @contextlib.contextmanager
    def context(cls) -> Iterator[MonkeyPatch]:
        """A patch that ends with the block."""
        patch = cls()
        try:
            yield patch
        finally:
            patch.undo()


def _restores(name: str) -> Callable[[], None]:
    before = os.environ.get(name)

    def restore() -> None:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before

    return restore


def _run_module(name: str, outcome: Outcome) -> None:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  whatever a module needs
        outcome.skipped[name] = f"{type(error).__name__}: {error}"
        return
    marks = getattr(module, "pytestmark", [])
    shared: dict[str, Any] = {}
    with contextlib.ExitStack() as module_end:
        for key, function in list(vars(module).items()):
            if not key.startswith("test_") or not inspect.isfunction(function):
                continue
            own = [*(marks if isinstance(marks, list) else [marks]), *function.__dict__.get("_marks", [])]
            for arguments in _cases(own):
                label = f"{name}::{key}[{'-'.join(map(str, arguments.values()))}]"
                try:
                    _run_case(module, function, own, arguments, shared, module_end)
                    outcome.passed += 1
                except _Skip as reason:
                    outcome.skipped[label] = str(reason)
                except Exception:  # noqa: BLE001  a test that fails
                    outcome.failed[label] = traceback.format_exc(limit=-1)


def _cases(marks: list[_Mark]) -> Iterator[dict[str, Any]]:
    """Arguments of every combination that the marks ask for."""
    axes: list[list[dict[str, Any]]] = []
    for mark in marks:
        if mark.name == "parametrize":
            names, values = mark.args
            names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
            axes.append([dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in values])
    for chosen in itertools.product(*axes):
        yield {name: value for part in chosen for name, value in part.items()}


def _run_case(
    module: types.ModuleType, function: Any, marks: list[_Mark], arguments: dict[str, Any],
    shared: dict[str, Any], module_end: contextlib.ExitStack,
) -> None:  # fmt: skip
    for mark in marks:
        if mark.name == "skipif" and mark.args[0]:
            raise _Skip(mark.options.get("reason", ""))
    with contextlib.ExitStack() as end:

        def value_of(name: str) -> Any:
            if name in arguments:
                return arguments[name]
            if name == "monkeypatch":
                return end.enter_context(MonkeyPatch.context())
            if name == "tmp_path":
                return Path(end.enter_context(tempfile.TemporaryDirectory()))
            fixture = getattr(module, name, None)
            if fixture is None or not hasattr(fixture, "_fixture"):
                raise _Skip(f"needs the fixture {name}")
            if name in shared:
                return shared[name]
            made = fixture(**{n: value_of(n) for n in inspect.signature(fixture).parameters})
            wide = fixture._fixture != "function"
            if inspect.isgenerator(made):
                made = (module_end if wide else end).enter_context(contextlib.contextmanager(lambda: made)())
            if wide:
                shared[name] = made
            return made

        for name, fixture in vars(module).items():
            if getattr(fixture, "_autouse", False):
                value_of(name)
        function(**{name: value_of(name) for name in inspect.signature(function).parameters})
