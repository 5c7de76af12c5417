"""Training worlds: augmented copies of the training split, concatenated to one market."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.data.splits import Span
from finrl_pod.data.tensor import build_market
from finrl_pod.data.worlds import LEAD_BARS, TrainingWorlds, check_augmentation, make_worlds
from finrl_pod.errors import ConfigError
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.settings.run import AugmentationConfig, EnvironmentConfig, MandateConfig
from finrl_pod.types import MarketTensor, Panel
from tests.data.panels import random_panel

PANEL = random_panel()
NAMES = ("return_1", "volatility_21", "return_5_rank")
TRAIN = Span(10, 299)
FIRST = 21  # first bar with all features
BARS = LEAD_BARS + 299 - FIRST + 1
TABLES = ("close", "fill", "features", "tradable", "fillable", "delisted", "fill_volume", "volatility")
VARIED = {"worlds": 3, "bootstrap_block": 20.0, "asset_share": 0.5, "cost_factor": 3.0, "feature_noise": 0.1}
UNVARIED = {"asset_share": 0.999}  # all six assets


def real_market(panel: Panel = PANEL) -> MarketTensor:
    return build_market(panel, NAMES, (TRAIN.first, TRAIN.last))


def worlds_of(panel: Panel = PANEL, seed: int = 7, **settings: Any) -> TrainingWorlds:
    market = real_market(panel)
    worlds = make_worlds(
        panel,
        TRAIN,
        market,
        lambda varied: build_market(varied, NAMES, market.normaliser),
        AugmentationConfig(**settings),
        seed,
    )
    assert worlds is not None
    return worlds


def test_without_settings_there_are_no_worlds() -> None:
    market = real_market()
    assert make_worlds(PANEL, TRAIN, market, lambda _: market, AugmentationConfig(), 0) is None


def test_a_world_without_augmentation_is_the_training_split() -> None:
    worlds, market = worlds_of(**UNVARIED), real_market()
    assert worlds.market.first == LEAD_BARS
    assert len(worlds.market.times) == BARS
    before = LEAD_BARS - FIRST  # bars that the panel lacks
    for name in TABLES:  # the last two bars differ, as the world ends there
        expected = getattr(market, name)[: TRAIN.last - 1]
        np.testing.assert_array_equal(getattr(worlds.market, name)[before : BARS - 2], expected, err_msg=name)
    np.testing.assert_array_equal(worlds.market.times[before:], PANEL.times[: TRAIN.last + 1])
    assert (worlds.first, worlds.last) == (LEAD_BARS, BARS - 3)


def test_bars_before_the_first_price_are_untradable() -> None:
    market, before = worlds_of(**UNVARIED).market, LEAD_BARS - FIRST
    assert not market.tradable[:before].any()
    assert not market.fillable[:before].any()
    assert not market.features[:before].any()
    assert (market.close[:before] == market.close[before]).all()
    assert (np.diff(market.times) == np.timedelta64(1, "D")).all()


def test_worlds_do_not_depend_on_bars_after_the_training_split() -> None:
    rng = np.random.default_rng(0)
    columns = {name: getattr(PANEL, name).copy() for name in PANEL.columns}
    for values in columns.values():
        values[TRAIN.last + 1 :] *= rng.uniform(0.5, 2, values[TRAIN.last + 1 :].shape)
    changed = dataclasses.replace(PANEL, **columns)
    a, b = worlds_of(**VARIED), worlds_of(changed, **VARIED)
    for name in TABLES:
        assert torch.equal(getattr(a.market, name), getattr(b.market, name)), name


def test_features_of_a_world_are_computed_from_its_prices() -> None:
    worlds = worlds_of(worlds=2, bootstrap_block=20.0)
    close, names = worlds.market.close.numpy(), worlds.market.normaliser
    mean, std = names.mean[0], names.std[0]
    for world in range(2):
        rows = slice(world * BARS, (world + 1) * BARS)
        returns = np.diff(np.log(close[rows, 0]))
        scaled = np.clip((returns - mean) / std, -10, 10)[LEAD_BARS:]
        np.testing.assert_allclose(worlds.market.features[rows][1 + LEAD_BARS :, 0, 0], scaled, atol=1e-5)
    assert not np.allclose(close[:BARS, 0], close[BARS:, 0])


def test_draws_depend_only_on_the_seed_and_the_number_of_the_world() -> None:
    one, repeated, other = worlds_of(**VARIED), worlds_of(**VARIED), worlds_of(**VARIED, seed=8)
    more = worlds_of(**{**VARIED, "worlds": 5})
    for name in TABLES:
        assert torch.equal(getattr(one.market, name), getattr(repeated.market, name))
        assert torch.equal(getattr(one.market, name), getattr(more.market, name)[: 3 * BARS])
    assert not torch.equal(one.market.close, other.market.close)


def test_worlds_have_different_assets() -> None:
    worlds = worlds_of(worlds=4, asset_share=0.5)
    traded = worlds.market.tradable.view(4, BARS, 6).any(1)
    assert traded.sum(1).tolist() == [3, 3, 3, 3]
    assert len({tuple(row) for row in traded.tolist()}) > 1
    assert worlds.market.features[~worlds.market.tradable].abs().max() == 0


def test_noise_has_the_configured_deviation_where_features_are_defined() -> None:
    noisy, market = worlds_of(worlds=2, feature_noise=0.1), real_market()
    clean = market.features[FIRST : TRAIN.last + 1]
    defined = torch.isfinite(market.raw_features[FIRST : TRAIN.last + 1])
    inside = defined & (clean.abs() < 9)
    for world in range(2):
        change = noisy.market.features[world * BARS + LEAD_BARS : (world + 1) * BARS] - clean
        assert change[inside].std() == pytest.approx(0.1, rel=0.05)
        assert change[~defined].abs().max() == 0


def test_no_episode_crosses_the_border_of_a_world() -> None:
    """The decision, the fill and the next prices of every reward lie in the same world."""
    worlds, window = worlds_of(worlds=3, bootstrap_block=20.0), 40
    config = EnvironmentConfig(envs=32, group=2, window=worlds.window(window), cost_bps=0.0)
    env = make_env(
        worlds.market,
        config,
        members=(0, 3),
        first=worlds.first,
        last=worlds.last,
        starts=[worlds.starts(window)] * 2,
    )
    observation = env.reset(1)
    first_worlds, visited = observation.bar // BARS, []
    for _ in range(120):
        step = env.step(torch.zeros(2, 32, 7))
        bar = step.final_observation.bar  # [P, G], reached by the decision of the bar before
        assert torch.equal((bar - 1) // BARS, (bar + 1) // BARS), "the fill that ends a reward lies in another world"
        ended = step.truncated[:, ::2]
        same = torch.where(ended, first_worlds, step.observation.bar // BARS)
        assert torch.equal(same, first_worlds), "an episode moved to another world"
        first_worlds = step.observation.bar // BARS
        visited.append(first_worlds)
    assert torch.stack(visited).unique().tolist() == [0, 1, 2]


def test_episodes_are_shortened_to_the_worlds() -> None:
    worlds = worlds_of(**UNVARIED)
    assert worlds.window(10_000) == BARS - LEAD_BARS - 2
    assert worlds.starts(BARS - LEAD_BARS - 2).tolist() == [LEAD_BARS]


def test_bars_per_year_are_those_of_a_single_world() -> None:
    worlds = worlds_of(worlds=3, bootstrap_block=20.0)
    assert bars_per_year(worlds.market.times) == pytest.approx(bars_per_year(PANEL.times), rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"worlds": 4}, "would repeat one history"),
        ({"cost_factor": 0.5}, "1 to 100"),
        ({"asset_share": 0.0}, "above 0 and at most 1"),
        ({"bootstrap_block": 0.5}, "0, or 1 or more"),
        ({"feature_noise": -1.0}, "0 or more"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_augmentation(AugmentationConfig(**settings), EnvironmentConfig())


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"per_share": 0.01}, "environment.per_share to 0"),
        ({"participation": 0.1}, "environment.participation to 0"),
        ({"cost_bps": 4000.0}, "up to 12,000 basis points"),
    ],
)
def test_costs_that_cannot_be_multiplied_are_refused(environment: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_augmentation(AugmentationConfig(cost_factor=3.0), EnvironmentConfig(**environment))


@pytest.mark.parametrize("mandate", [None, MandateConfig()])
def test_costs_are_multiplied_by_the_factor_of_the_world(mandate: MandateConfig | None) -> None:
    worlds = worlds_of(worlds=4, cost_factor=4.0)
    assert worlds.market.cost_factor is not None
    factors = worlds.market.cost_factor.view(4, BARS)
    assert (factors == factors[:, :1]).all()
    assert len(factors[:, 0].unique()) == 4
    assert 0.25 < factors.min() < 1 < factors.max() < 4
    config = EnvironmentConfig(envs=16, group=2, window=30, cost_bps=20.0, half_spread_bps=5.0)
    starts = [worlds.starts(30)]
    env = make_env(worlds.market, config, first=worlds.first, last=worlds.last, starts=starts, mandate=mandate)
    observation = env.reset(0)
    for _ in range(5):
        rate = worlds.market.cost_factor[observation.bar[0]].repeat_interleave(2) * 25e-4
        assert env.state is not None
        expected = env.transition(env.state, torch.zeros(1, 16, env.action_size))[1]
        step = env.step(torch.zeros(1, 16, env.action_size))
        torch.testing.assert_close(step.cost, expected.cost, rtol=1e-4, atol=1e-2)
        before = step.cost[0] / (step.turnover[0] * rate)
        torch.testing.assert_close(before, torch.full((16,), 1e6, dtype=before.dtype), rtol=0.3, atol=0)
        observation = step.observation
