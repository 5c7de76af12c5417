"""A price store, a finished run, and pages drawn without a browser (Streamlit's AppTest)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from finrl_pod_app.dashboard.settings import RUNS_VARIABLE
from finrl_pod_app.training.tournaments import run_tournament

from tests.app.small_run import fill_store, small_config
from tests.dashboard.page_figures import open_page

MAIN = sys.modules["__main__"]


@pytest.fixture(autouse=True)
def restore_main_module() -> Iterator[None]:
    """AppTest leaves its script as the main module, which processes spawned later would import."""
    yield
    sys.modules["__main__"] = MAIN


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the panels `main` and `other`."""
    folder = tmp_path_factory.mktemp("dashboard store")
    fill_store(folder)
    return folder


@pytest.fixture(scope="session")
def finished(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, the only one in its parent. Copy it before changing it."""
    runs, threads = tmp_path_factory.mktemp("dashboard runs"), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINRL_POD_DATA", str(store))
        patch.setenv("FINRL_POD_HOME", str(tmp_path_factory.mktemp("dashboard home")))
        run_tournament(small_config(), runs / "mine", device="cpu")
    torch.set_num_threads(threads)
    return runs / "mine"


@pytest.fixture
def visit(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., object]]:
    """visit(page, runs, **query) draws a page over a folder of runs and returns the AppTest."""
    import streamlit as st

    monkeypatch.setenv("FINRL_POD_DATA", str(store))
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def draw(page: str, runs: Path, **query: str) -> object:
        monkeypatch.setenv(RUNS_VARIABLE, str(runs))
        return open_page(page, **query)

    threads = torch.get_num_threads()
    yield draw
    torch.set_num_threads(threads)  # pages set it for the whole process
    st.cache_resource.clear()
    st.cache_data.clear()
