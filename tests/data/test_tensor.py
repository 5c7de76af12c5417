"""The market tensor: observations and fill prices of every bar."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import torch

from finrl_pod.data.features import compute
from finrl_pod.data.price_features import turbulence
from finrl_pod.data.tensor import build_market, fit_normaliser, leaked_return, to_device, with_extra_feature
from finrl_pod.errors import DataError, FeatureError
from finrl_pod.settings.run import FeatureConfig
from finrl_pod.types import MarketTensor, Normaliser, Panel
from tests.data.panels import END, START, changed_after, panel, random_panel

PANEL = random_panel()
NAMES = ("return_1", "volatility_21", "return_5_rank")
FIT = (50, 299)
NAN = np.nan

# Ticker 0 starts at bar 2, ticker 1 misses bar 2, ticker 2 ends with bar 3, ticker 3 misses the panel's last bar.
CLOSES = np.array(
    [
        [NAN, 20.0, 30.0, 40.0],
        [NAN, 21.0, 31.0, 41.0],
        [12.0, NAN, 32.0, 42.0],
        [13.0, 23.0, 33.0, 43.0],
        [14.0, 24.0, NAN, 44.0],
        [15.0, 25.0, NAN, NAN],
    ]
)
OPENS = CLOSES + 0.5
CARRIED = [
    [1.0, 20.0, 30.0, 40.0],
    [1.0, 21.0, 31.0, 41.0],
    [12.0, 21.0, 32.0, 42.0],
    [13.0, 23.0, 33.0, 43.0],
    [14.0, 24.0, 33.0, 44.0],
    [15.0, 25.0, 33.0, 44.0],
]
FILLABLE = [[0, 1, 1, 1], [0, 0, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]]
NEXT_OPEN = [
    [1.0, 21.5, 31.5, 41.5],
    [1.0, 21.0, 32.5, 42.5],
    [13.5, 21.0, 33.5, 43.5],
    [14.5, 24.5, 33.0, 44.5],
    [15.5, 25.5, 33.0, 44.0],
    [15.0, 25.0, 33.0, 44.0],
]


def small(with_opens: bool = False) -> Panel:
    return panel(CLOSES, open=OPENS) if with_opens else panel(CLOSES)


def test_next_fill_is_the_next_open() -> None:
    market = build_market(small(with_opens=True), (), (0, 5))
    np.testing.assert_array_equal(market.close, CARRIED)
    np.testing.assert_array_equal(market.fill, NEXT_OPEN)
    np.testing.assert_array_equal(market.fillable, np.array(FILLABLE, dtype=bool))
    assert market.close.dtype == market.fill.dtype == torch.float64
    assert (market.fill_rule, market.steps) == ("next", 4)


def test_next_fill_is_the_next_close_without_opens() -> None:
    market = build_market(small(), (), (0, 5))
    expected = np.where(np.array(FILLABLE, dtype=bool), np.array(NEXT_OPEN) - 0.5, CARRIED)
    np.testing.assert_array_equal(market.fill, expected)
    np.testing.assert_array_equal(market.fillable, np.array(FILLABLE, dtype=bool))


def test_same_close_fills_at_the_observed_close() -> None:
    market = build_market(small(with_opens=True), (), (0, 5), fill="same_close")
    np.testing.assert_array_equal(market.fill, CARRIED)
    np.testing.assert_array_equal(market.fillable, np.isfinite(CLOSES))
    assert (market.fill_rule, market.steps) == ("same_close", 5)


def test_tradable_and_ended() -> None:
    market = build_market(small(), (), (0, 5))
    np.testing.assert_array_equal(market.tradable, np.isfinite(CLOSES))
    expected = np.zeros((6, 4), dtype=bool)
    expected[3:, 2] = True  # its last bar is bar 3
    expected[4:, 3] = True
    np.testing.assert_array_equal(
        market.delisted, expected
    )  # tickers that trade on the panel's last bar have not ended


def test_listing_dates_and_gaps_of_a_larger_panel() -> None:
    market = build_market(PANEL, NAMES, FIT)
    assert not market.tradable[:START, 1].any()
    assert (market.close[:START, 1] == 1).all()
    assert (market.features[:START, 1] == 0).all()
    assert market.delisted[:, 2].nonzero()[0].item() == END
    assert (market.close[END:, 2] == PANEL.close[END, 2]).all()
    assert (market.fill[END:, 2] == PANEL.close[END, 2]).all()
    assert not market.fillable[END:, 2].any()
    assert bool(market.close.isfinite().all() and (market.close > 0).all() and (market.fill > 0).all())


def test_features_are_normalised_and_finite_and_raw_ones_keep_their_nan() -> None:
    market = build_market(PANEL, NAMES, FIT)
    raw = compute(PANEL, NAMES)
    np.testing.assert_allclose(market.raw_features, raw.astype(np.float32), equal_nan=True)
    for i in range(len(NAMES)):
        cells = raw[FIT[0] : FIT[1] + 1, :, i]
        mean, std = np.nanmean(cells), np.nanstd(cells)
        expected = np.nan_to_num(np.clip((raw[..., i] - mean) / std, -10, 10))
        np.testing.assert_allclose(market.features[..., i], expected, atol=1e-5)
    assert market.features.dtype == market.raw_features.dtype == torch.float32
    assert market.shape == (*PANEL.close.shape, 3)
    assert bool((market.features[market.raw_features.isnan()] == 0).all())


def test_values_beyond_the_clip_are_clipped() -> None:
    close = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, (60, 2)).cumsum(0))
    close[50:, 0] *= 5
    market = build_market(panel(close), ("return_1",), (0, 40))
    assert market.features.max() == 10


@pytest.mark.parametrize("how", ["perturbed", "permuted", "missing"])
def test_the_normaliser_uses_only_training_bars(how: str) -> None:
    before = build_market(PANEL, NAMES, FIT)
    after = build_market(changed_after(PANEL, FIT[1], how), NAMES, FIT)
    assert after.normaliser == before.normaliser
    assert torch.equal(after.features[: FIT[1] + 1], before.features[: FIT[1] + 1])
    inside = build_market(changed_after(PANEL, FIT[1] - 1, how), NAMES, FIT)
    assert inside.normaliser != before.normaliser, "the last training bar belongs to the fit"
    # Features look back up to 21 bars, so only bars long before the range must have no effect.
    raw = compute(PANEL, NAMES)
    other = raw.copy()
    other[: FIT[0]] *= 3
    other[FIT[1] + 1 :] = 7
    assert fit_normaliser(raw, PANEL.tradable, *FIT, NAMES) == fit_normaliser(other, PANEL.tradable, *FIT, NAMES)


def test_normaliser_ignores_untradable_cells() -> None:
    raw = np.array([[[1.0], [5.0]], [[3.0], [900.0]]])
    fitted = fit_normaliser(raw, np.array([[True, True], [True, False]]), 0, 1, ("x",))
    assert fitted.mean == (3.0,)
    assert fitted.std == pytest.approx((np.sqrt(8 / 3),))


def test_a_constant_feature_becomes_zero() -> None:
    fitted = fit_normaliser(np.full((4, 2, 1), 0.1), np.ones((4, 2), dtype=bool), 0, 3, ("x",))
    assert fitted.std == (1.0,)
    assert fitted.mean == pytest.approx((0.1,))


def test_a_fitted_normaliser_is_used_unchanged_and_only_with_its_features() -> None:
    fitted = build_market(PANEL, NAMES, FIT).normaliser
    later = changed_after(PANEL, 100, "perturbed")
    assert build_market(later, NAMES, fitted).normaliser == fitted
    with pytest.raises(FeatureError, match="the normaliser was fitted for"):
        build_market(PANEL, NAMES[:2], fitted)


def test_first_is_the_first_bar_at_which_one_ticker_has_every_feature() -> None:
    assert build_market(PANEL, NAMES, FIT).first == 21
    assert build_market(PANEL, (*NAMES, "momentum_252_21"), (0, 299)).first == 252
    assert build_market(small(), (), (0, 5)).first == 0
    # Only ticker 1 has early bars, only ticker 0 late ones; features of different tickers must not be combined.
    close = np.full((20, 2), np.nan)
    close[:3, 1], close[4:, 0] = [1.0, 2.0, 3.0], np.arange(1.0, 17.0)
    assert build_market(panel(close), ("return_1", "return_5"), (0, 19)).first == 9


def test_turbulence_is_computed_on_request() -> None:
    assert build_market(PANEL, NAMES, FIT).turbulence is None
    expected = turbulence(PANEL)
    for market in (build_market(PANEL, NAMES, FIT, turbulence=True), build_market(PANEL, ("turbulence",), (0, 299))):
        assert market.turbulence is not None
        np.testing.assert_array_equal(market.turbulence, expected)
        assert market.turbulence.dtype == torch.float64


def test_no_features_at_all() -> None:
    market = build_market(PANEL, (), FIT)
    assert market.shape == (*PANEL.close.shape, 0)
    assert market.normaliser.feature_names == ()


def test_invalid_input_raises_with_the_value() -> None:
    with pytest.raises(DataError, match='fill must be "next" or "same_close", got \'now\''):
        build_market(PANEL, NAMES, FIT, fill="now")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="at least 3 bars"):
        build_market(panel(CLOSES[:2]), (), (0, 1))
    with pytest.raises(FeatureError, match="fitted on bars 0 to 419, got 50 to 420"):
        build_market(PANEL, NAMES, (50, 420))
    with pytest.raises(FeatureError, match="fitted on bars 0 to 419, got 9 to 8"):
        build_market(PANEL, NAMES, (9, 8))
    with pytest.raises(FeatureError, match="'return_252' is undefined on all training bars 0 to 200"):
        build_market(PANEL, ("return_1", "return_252"), (0, 200))
    fitted = Normaliser(("return_252",), (0.0,), (1.0,))
    with pytest.raises(FeatureError, match="return_252 are never defined together in 100 bars"):
        build_market(changed_after(PANEL, 99, "cut"), ("return_252",), fitted)


def test_the_panel_is_not_shared_with_the_market() -> None:
    source = random_panel()
    market = build_market(source, NAMES, FIT, fill="same_close")
    for tensor in (market.close, market.fill, market.tradable, market.fillable):
        tensor.zero_()
    assert source.sha256 == PANEL.sha256


def test_leaked_return_equals_the_return_of_a_decision() -> None:
    market = build_market(small(with_opens=True), (), (0, 5))
    expected = np.full((6, 4), NAN)
    for t in range(market.steps):
        for asset in range(4):
            if FILLABLE[t][asset]:
                expected[t, asset] = np.log(NEXT_OPEN[t + 1][asset] / NEXT_OPEN[t][asset])
    np.testing.assert_allclose(leaked_return(market), expected, rtol=1e-12)
    assert np.isfinite(expected).sum() == 11


def test_an_extra_feature_is_normalised_by_the_same_rule() -> None:
    market = build_market(PANEL, NAMES, FIT)
    values = compute(PANEL, ("return_21",))[..., 0]
    extended = with_extra_feature(market, "extra", values, FIT)
    expected = build_market(PANEL, (*NAMES, "return_21"), FIT)
    assert torch.equal(extended.features, expected.features)
    assert torch.equal(extended.raw_features.nan_to_num(9), expected.raw_features.nan_to_num(9))
    assert extended.normaliser.mean == expected.normaliser.mean
    assert extended.normaliser.std == expected.normaliser.std
    assert extended.feature_names == extended.normaliser.feature_names == (*NAMES, "extra")
    assert market.shape[2] == 3, "the first market stays as it was"
    with pytest.raises(FeatureError, match="already has a feature 'extra'"):
        with_extra_feature(extended, "extra", values, FIT)
    with pytest.raises(FeatureError, match=r"must have shape \(420, 6\)"):
        with_extra_feature(market, "extra", values[1:], FIT)


def test_an_extra_feature_can_be_added_to_a_market_without_features() -> None:
    market = build_market(PANEL, (), FIT)
    extended = with_extra_feature(market, "leak", leaked_return(market), FIT)
    assert extended.shape[2] == 1
    assert extended.features[: FIT[1], 0, 0].std() == pytest.approx(1, abs=0.3)


def test_to_device_moves_every_tensor() -> None:
    market = build_market(PANEL, NAMES, FIT, turbulence=True)
    moved = to_device(market, "meta", torch.float32)
    for field in dataclasses.fields(MarketTensor):
        old, new = getattr(market, field.name), getattr(moved, field.name)
        if isinstance(old, torch.Tensor):
            assert new.device.type == "meta", field.name
            assert new.shape == old.shape
        else:
            assert new is old
    assert moved.close.dtype == moved.fill.dtype == torch.float32
    assert to_device(market, "cpu").close.dtype == torch.float64


@pytest.mark.parametrize("fill", ["next", "same_close"])
def test_observations_do_not_depend_on_later_bars(fill: str) -> None:
    """Fill prices and `fillable` at t use bar t+1; all other tensors use bars up to t only."""
    before = build_market(PANEL, NAMES, FIT, fill=fill)  # type: ignore[arg-type]
    bar = 320
    after = build_market(changed_after(PANEL, bar, "missing"), NAMES, FIT, fill=fill)  # type: ignore[arg-type]
    past = slice(0, bar + 1)
    for name in ("close", "features", "tradable"):
        assert torch.equal(getattr(before, name)[past], getattr(after, name)[past]), name
    filled = slice(0, bar if fill == "next" else bar + 1)
    assert torch.equal(before.fill[filled], after.fill[filled])
    assert torch.equal(before.fillable[filled], after.fillable[filled])


@pytest.mark.slow
def test_a_panel_of_the_samples_size_takes_less_than_a_second() -> None:
    close = 50 * np.exp(np.random.default_rng(0).normal(0, 0.01, (8313, 20)).cumsum(0))
    source = panel(close)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        build_market(source, FeatureConfig().names, (0, 6500))
        seconds.append(time.process_time() - start)
    assert min(seconds) < 1
