"""Commands that train, on a panel with a late listing, an early delisting and a gap."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.api import setup as api
from finrl_pod_app.api.training import train
from finrl_pod_app.training.walkforward import run_walkforward

from finrl_pod.data.store import Store
from finrl_pod.settings.algorithm_configs import ClosedFormConfig
from finrl_pod.settings.run import DataConfig, MandateConfig, RunConfig
from tests.app.small_run import isolated_folders, run_tournament, small_config, small_panel

pytestmark = pytest.mark.slow

LATE, DELISTED, GAP = 650, 200, slice(300, 315)  # bars of 700; the training split ends before bar 490


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with isolated_folders(tmp_path_factory.mktemp("incomplete")) as path:
        panel = small_panel("incomplete")
        close, tradable = panel.close.copy(), panel.tradable.copy()
        for n, rows in ((1, slice(0, LATE)), (2, slice(DELISTED, None)), (3, GAP)):
            close[rows, n], tradable[rows, n] = np.nan, False
        Store(path / "store").save(dataclasses.replace(panel, close=close, tradable=tradable))
        yield path


def config(*, solved: bool) -> RunConfig:
    small = dataclasses.replace(
        small_config(pods=2, generations=1), data=DataConfig("incomplete"), mandate=MandateConfig()
    )
    started = dataclasses.replace(small.agent, policy="linear", start="closed_form")  # type: ignore[call-arg]
    return dataclasses.replace(small, agent=ClosedFormConfig() if solved else started)


@pytest.mark.parametrize("solved", [True, False])
def test_agents_are_trained_and_tested(solved: bool, folder: Path) -> None:
    setup = api.prepare(config(solved=solved))
    assert setup.splits.train.last < LATE
    weights = train(setup, 64, progress=False).learner.snapshot().weights["linear_w"]
    assert np.isfinite(weights.numpy()).all()
    document = run_tournament(config(solved=solved), folder / f"run-{solved}", device="cpu")
    assert math.isfinite(document["test"]["strategies"]["champion"]["sharpe"])


def test_a_walk_forward_has_every_fold(folder: Path) -> None:
    document = run_walkforward(config(solved=True), folder / "walk", folds=2, seeds=1, device="cpu")
    assert len(document["folds"]) == 2
