"""A small tournament in a market without an edge, from prices to a reproducible p-value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.harness.simulated_markets import prices
from benchmarks.learning.noise import TOURNAMENT, champion_excess, noise_panel
from finrl_pod.data.panel import make_panel
from finrl_pod.evaluate.significance import mean_z_score, upper_tail
from finrl_pod.settings.run import EnvironmentConfig, FeatureConfig, PPOConfig, RunConfig, SplitConfig

CONFIG = RunConfig(
    seed=3,
    splits=SplitConfig(
        train=("2015-01-01", "2016-12-31"), validation=("2017-01-01", "2017-06-30"), test=("2017-07-01", "2017-12-31")
    ),
    features=FeatureConfig(("return_1", "return_21")),
    environment=EnvironmentConfig(envs=32, group=8, window=60),
    agent=PPOConfig(horizon=16, minibatches=4, hidden=(8, 8)),
    tournament=replace(TOURNAMENT, pods=3, samples_per_generation=2048),
)


@pytest.mark.slow
def test_champion_of_noise_has_a_reproducible_p_value() -> None:
    bars = 1096  # 2015 to 2017
    times = np.datetime64("2015-01-01", "ns") + np.arange(bars) * np.timedelta64(1, "D")
    returns = np.random.default_rng(12).normal(3e-4, 0.01, (bars, 4))
    panel = noise_panel(make_panel(times, list("ABCD"), {"close": prices(returns)}), 700, seed=0)
    excess = champion_excess(panel, CONFIG, torch.device("cpu"))
    test_days = int((times >= np.datetime64("2017-07-01")).sum())
    assert excess.shape == (test_days - 1,)
    assert np.ptp(excess) > 0
    assert 0 < upper_tail(mean_z_score(excess)) <= 1
    assert np.array_equal(champion_excess(panel, CONFIG, torch.device("cpu")), excess)
