"""Garbage collection of the server: when it runs, and that memory of cycles is freed."""

from __future__ import annotations

import gc
import weakref

import pytest
from finrl_pod_app.dashboard import garbage
from finrl_pod_app.dashboard.pages import widgets
from finrl_pod_app.dashboard.serving import server


class Cycle:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock of the module, in a list of one element."""
    now = [1_000.0]
    monkeypatch.setattr(garbage, "_due", 0.0)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_one_collection_per_interval(clock: list[float]) -> None:
    gc.disable()
    try:
        found = []
        for seconds in (0.0, 0.5 * garbage.INTERVAL, 1.1 * garbage.INTERVAL):
            clock[0] = 1_000.0 + seconds
            cycle = weakref.ref(Cycle())
            garbage.collect_if_due()
            found.append(cycle() is None)
    finally:
        gc.enable()
    assert found == [True, False, True]


def test_refreshes_of_a_part_collect() -> None:
    cycle = weakref.ref(Cycle())
    widgets.show_errors(lambda: None)()
    assert cycle() is None


def test_frozen_objects_hold_no_garbage() -> None:
    cycle = weakref.ref(Cycle())
    try:
        garbage.freeze_imports()
        assert cycle() is None
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_streamlit_does_not_collect_after_each_run() -> None:
    assert server.streamlit_options("127.0.0.1", 8501)["runner.postScriptGC"] is False
