"""A run whose agents train on variations of the training split."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from finrl_pod_app.api import setup as api
from finrl_pod_app.training.tournaments import run_tournament

from finrl_pod.data.worlds import LEAD_BARS
from finrl_pod.errors import ConfigError, Interrupted
from finrl_pod.settings.run import AugmentationConfig, RunConfig
from finrl_pod.tournament.progress import Progress
from tests.app.small_run import isolated_folders, small_config

AUGMENTATION = AugmentationConfig(
    worlds=2,
    bootstrap_block=20.0,
    asset_share=0.75,
    cost_factor=2.0,
    feature_noise=0.1,
)


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with isolated_folders(tmp_path_factory.mktemp("augmented")) as folder:
        yield folder


def config(**tournament: Any) -> RunConfig:
    return dataclasses.replace(small_config(generations=2, **tournament), augmentation=AUGMENTATION)


def timeless(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "timing"}


def test_only_the_training_environments_change() -> None:
    plain = api.prepare(dataclasses.replace(config(), augmentation=AugmentationConfig()), device="cpu")
    varied = api.prepare(config(), device="cpu")
    assert plain.worlds is None
    assert plain.environment().market is plain.market
    for name in ("close", "fill", "features", "tradable", "fillable"):
        assert torch.equal(getattr(plain.market, name), getattr(varied.market, name))
    assert varied.market.normaliser == plain.market.normaliser
    env = varied.environment((0, 1))
    assert env.market.normaliser == plain.market.normaliser
    bars = varied.splits.train.last - max(varied.splits.train.first, varied.market.first) + 1 + LEAD_BARS
    assert env.market.shape == (2 * bars, *plain.market.shape[1:])


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == "training generation 2 of 2":
            raise KeyboardInterrupt

    whole = run_tournament(config(), tmp_path / "whole", device="cpu")
    with pytest.raises(Interrupted):
        run_tournament(config(), tmp_path / "cut", device="cpu", progress=stop)
    resumed = run_tournament(config(), tmp_path / "cut", resume=True, device="cpu")
    assert timeless(json.loads(json.dumps(resumed))) == timeless(json.loads(json.dumps(whole)))


def test_settings_that_cannot_work_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    bad = dataclasses.replace(config(), augmentation=AugmentationConfig(worlds=3))
    with pytest.raises(ConfigError, match="would repeat one history"):
        run_tournament(bad, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="would repeat one history"):
        api.prepare(bad)
