"""The audit finds and names every planted fault, and passes sound pipelines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.evaluation.audit import audit_env_factory
from finrl_pod_strategies.baselines import EqualWeight

from finrl_pod.data.flaws import check as check_flaws
from finrl_pod.data.panel import cut, make_panel
from finrl_pod.data.splits import Span, Splits, make_splits
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.audit.data_checks import check_data
from finrl_pod.evaluate.audit.determinism import check_determinism, check_warm_up, row_fingerprints
from finrl_pod.evaluate.audit.fills import check_fills
from finrl_pod.evaluate.audit.leakage import check_normaliser, check_selection, check_splits
from finrl_pod.evaluate.audit.lookahead import check_lookahead
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, clean, permute_future, with_random_future
from finrl_pod.settings.run import EnvironmentConfig, SplitConfig
from finrl_pod.types import Floats, MarketTensor, Panel
from tests.data.panels import random_panel
from tests.evaluate.audit.pipelines import (
    FEATURES,
    MOMENTUM,
    OUT_OF_SAMPLE,
    LookaheadEnv,
    LookaheadStrategy,
    RandomStrategy,
    SameCloseEnv,
    WholeHistory,
    back_filled,
    centred_average,
    environment,
    normaliser_of,
    panel,
    registered_feature,
    scaled_by_all_bars,
    sound_pipeline,
)

PROBES = 3


def only(findings: list[Finding]) -> Finding:
    (finding,) = [f for f in findings if f.status == "fail"]
    return finding


# ---------------------------------------------------------------------- sound pipelines


@pytest.mark.slow
@pytest.mark.parametrize("opens", [False, True])
def test_a_sound_pipeline_passes(opens: bool) -> None:
    subject = sound_pipeline(panel(gap=True, opens=opens), strategies={"momentum": MOMENTUM})
    for check in (
        lambda p: check_lookahead(p, PROBES),
        lambda p: check_warm_up(p, 500, PROBES),
        check_fills,
        check_determinism,
    ):
        assert [f.status for f in check(subject)] == ["pass"]


def test_changes_leave_earlier_bars_unchanged() -> None:
    full = panel(gap=True)
    for changed in (with_random_future(full, 700, 1), permute_future(full, 700, 1)):
        assert np.array_equal(changed.close[:701], full.close[:701], equal_nan=True)
        assert not np.array_equal(changed.close[701:], full.close[701:], equal_nan=True)
        assert np.array_equal(changed.times, full.times)
        assert full.benchmark is not None
        assert changed.benchmark is not None
        assert np.array_equal(changed.benchmark.close[:701], full.benchmark.close[:701])
        assert not np.array_equal(changed.benchmark.close[701:], full.benchmark.close[701:])
    assert sorted(permute_future(full, 700, 1).close[701:, 0]) == sorted(full.close[701:, 0])
    assert cut(full, 3, 10).close.shape == (7, 4)


def test_random_futures_are_consistent_bars_with_factors_of_their_own() -> None:
    full = random_panel(bars=500)
    for n, first in ((0, 400), (5, 450)):  # two late listings
        full.tradable[:first, n] = False
        for name in full.columns:
            getattr(full, name)[:first, n] = np.nan
    full = dataclasses.replace(
        full,
        spread=np.where(full.tradable, 0.001, np.nan),
        dividend=np.where(full.tradable, 0.0, np.nan),
        members=np.ones(full.close.shape, bool),
    )
    t, fewer, more = 362, 0, 0
    for seed in range(30):
        changed = with_random_future(full, t, seed)
        for name in (*full.columns, "tradable", "members"):
            np.testing.assert_array_equal(getattr(changed, name)[: t + 1], getattr(full, name)[: t + 1])
        assert not [flaw for flaw in check_flaws(changed) if flaw.hard]
        for name in full.columns:
            np.testing.assert_array_equal(np.isfinite(getattr(changed, name)), changed.tradable, err_msg=name)
        assert changed.low is not None
        assert changed.high is not None
        assert changed.open is not None
        for price in (changed.open, changed.close):
            cells = changed.tradable & full.tradable
            assert (price[cells] <= changed.high[cells] * (1 + 1e-12)).all()
            assert (price[cells] >= changed.low[cells] * (1 - 1e-12)).all()
        later = changed.tradable[t + 1 :]
        fewer += int((later < full.tradable[t + 1 :]).any(0).sum())
        more += int((later > full.tradable[t + 1 :]).any(0).sum())
        ended = ~full.tradable[t:].any(0)
        assert not later[:, ended].any()
        in_gap = ~full.tradable[t] & ~ended & full.tradable[:t].any(0)
        assert later[:, in_gap].any(0).all()
        only_prices = with_random_future(full, t, seed, gaps=False)
        np.testing.assert_array_equal(only_prices.tradable, full.tradable)
        assert only_prices.open is not None
        assert full.open is not None
        ratios = (only_prices.close / full.close)[t + 1 :, 4], (only_prices.open / full.open)[t + 1 :, 4]
        assert np.abs(np.log(ratios[0] / ratios[1])).std() > 0.03
        assert only_prices.high is not None
        later_close, later_high = (x[t + 1 :][full.tradable[t + 1 :]] for x in (only_prices.close, only_prices.high))
        assert 0.02 < (later_close == later_high).mean() < 0.1
        assert 0.02 < (only_prices.close[t + 1 :] == only_prices.close[t:-1]).mean() < 0.15
    assert fewer > 10
    assert more > 5


# ---------------------------------------------------------------------- look-ahead


def next_return_less_its_mean(prices: Panel) -> Floats:
    values = np.zeros_like(prices.close)
    values[:-1] = np.diff(np.log(prices.close), axis=0)
    return np.asarray(values - values.mean(1, keepdims=True))


def trades_in_twenty_bars(prices: Panel) -> Floats:
    return np.vstack([prices.tradable[20:], prices.tradable[-20:]]) * 1.0


def tiny_next_return(prices: Panel) -> Floats:
    return 1e-9 * next_return_less_its_mean(prices)


@pytest.mark.slow
@pytest.mark.parametrize("peek", [next_return_less_its_mean, trades_in_twenty_bars, tiny_next_return])
def test_relative_and_small_peeks_are_found(peek: Callable[[Panel], Floats]) -> None:
    with registered_feature("peek", peek) as name:
        subject = sound_pipeline(names=(*FEATURES, name), strategies={}, make_env=None)
        assert only(check_lookahead(subject, 10)).part == "feature peek"


def test_features_that_fail_on_later_prices_are_no_pass() -> None:
    full = panel()

    def fragile(prices: Panel) -> Floats:
        if len(prices.times) < len(full.times) or not np.array_equal(prices.close, full.close):
            raise FeatureError("only these prices")
        return prices.close

    with registered_feature("fragile", fragile) as name:
        (finding,) = check_lookahead(sound_pipeline(names=(name,), strategies={}, make_env=None), 2)
    assert (finding.status, finding.part) == ("warn", "features")
    assert "only these prices" in finding.message


@pytest.mark.slow
def test_centred_moving_average_is_found() -> None:
    with registered_feature("centred", centred_average) as name:
        finding = only(check_lookahead(sound_pipeline(names=(*FEATURES, name)), PROBES))
    assert (finding.check, finding.part) == ("look-ahead", "feature centred")
    assert finding.bar == str(panel().times[0].astype("datetime64[D]"))  # the second bar is always probed


@pytest.mark.slow
def test_feature_scaled_by_all_bars_is_found() -> None:
    with registered_feature("scaled", scaled_by_all_bars) as name:
        finding = only(check_lookahead(sound_pipeline(names=(name, *FEATURES)), PROBES))
    assert finding.part == "feature scaled"


@pytest.mark.slow
def test_normaliser_refitted_on_all_bars_is_found() -> None:
    refitted = sound_pipeline(build=lambda p: build_market(p, FEATURES, (0, len(p.times) - 1)))
    findings = check_lookahead(refitted, PROBES)
    assert {f.part for f in findings} == {f"the normaliser of {name}" for name in FEATURES}
    assert all(f.status == "fail" and "depends on the future" in f.message for f in findings)


@pytest.mark.slow
def test_spread_of_a_later_bar_is_found() -> None:
    full = panel()
    full = dataclasses.replace(full, spread=np.random.default_rng(0).uniform(0, 0.01, full.close.shape))

    def build(prices: Panel) -> MarketTensor:
        market = build_market(prices, FEATURES, normaliser_of(full))
        assert market.half_spread is not None
        return dataclasses.replace(market, half_spread=market.half_spread.roll(-1, 0))

    finding = only(check_lookahead(sound_pipeline(full, build=build, make_env=None), PROBES))
    assert finding.part == "the spread of fills"
    assert not [f for f in check_lookahead(sound_pipeline(full), PROBES) if f.status == "fail"]


@pytest.mark.slow
def test_back_fill_is_found() -> None:
    subject = sound_pipeline(panel(gap=True), prepare=back_filled, make_env=None)
    # Within a gap the price of the next bar is already present.
    subject = dataclasses.replace(subject, panel=_with_probe_in_gap(subject.panel))
    findings = check_lookahead(subject, 40)
    assert {f.part for f in findings if f.status == "fail"} == {
        "the preparation of close",
        "the preparation of tradable",
    }
    assert "(prices)" in findings[0].message


def _with_probe_in_gap(full: Panel) -> Panel:
    """Probes avoid gaps of listed tickers; the bars before a late listing are no gap."""
    tradable = full.tradable.copy()
    tradable[:750, 3] = False
    close = np.where(tradable, full.close, np.nan)
    return dataclasses.replace(full, close=close, tradable=tradable)


@pytest.mark.slow
def test_environment_that_observes_the_next_bar_is_found() -> None:
    finding = only(check_lookahead(sound_pipeline(make_env=environment(LookaheadEnv)), PROBES))
    assert finding.part in ("the environment's observation", "the environment's final observation")
    assert "(environment)" in finding.message
    assert finding.bar is not None
    assert finding.bar >= str(panel().times[OUT_OF_SAMPLE - 30].astype("datetime64[D]"))


@pytest.mark.slow
def test_member_that_uses_the_next_bar_is_named() -> None:
    markets: list[MarketTensor] = []
    frozen = normaliser_of(panel())

    def build(prices: Panel) -> MarketTensor:
        markets.append(build_market(prices, FEATURES, frozen))
        return markets[-1]

    lookahead = LookaheadStrategy(lambda: markets[-1])

    class Ensemble:
        name, feature_names, lookback = "champion", FEATURES[:1], 2

        def target_weights(self, window: Any, positions: Any) -> Any:
            equal = np.full(4, 0.25)
            return (equal + lookahead.target_weights(window, positions)) / 2

    strategies = {"champion": Ensemble(), "honest": EqualWeight(), "lookahead": lookahead}
    finding = only(check_lookahead(sound_pipeline(build=build, strategies=strategies), PROBES))
    assert finding.part == "strategy lookahead"
    assert "(decisions)" in finding.message


# ---------------------------------------------------------------------- leakage between splits


def splits(train: int = 500, validation: int = 700, embargo: int = 3) -> Splits:
    last = len(panel().times) - 1
    return Splits(
        Span(0, train - embargo - 1),
        Span(train, validation - embargo - 1),
        Span(validation, last),
        embargo,
        panel().times,
    )


def test_normaliser_fitted_on_all_bars_is_found() -> None:
    full = panel()
    market = build_market(full, FEATURES, (0, len(full.times) - 1))
    findings = check_normaliser(market, market.normaliser, (0, OUT_OF_SAMPLE - 1))
    assert {f.part for f in findings} <= {f"the normaliser of {name}" for name in FEATURES}
    assert len(findings) >= 3
    assert findings[0].bar == str(full.times[OUT_OF_SAMPLE].astype("datetime64[D]"))
    sound = build_market(full, FEATURES, (0, OUT_OF_SAMPLE - 1))
    assert clean(check_normaliser(sound, sound.normaliser, (0, OUT_OF_SAMPLE - 1)))


def test_splits_that_share_bars_or_rewards_are_found() -> None:
    assert [f.status for f in check_splits(splits(), 494)] == ["pass"]
    assert [f.status for f in check_splits(splits())] == ["pass"]
    late = only(check_splits(splits(), 495))
    assert late.part == "training environments"
    assert late.bar == str(panel().times[497].astype("datetime64[D]"))
    overlapping = dataclasses.replace(splits(), validation=Span(490, 690))
    assert only(check_splits(overlapping)).part == "train and validation"
    short = check_splits(splits(embargo=0))
    assert [f.status for f in short] == ["warn", "warn"]
    config = SplitConfig(("2018-01-01", "2019-01-31"), ("2019-02-01", "2019-08-31"), ("2019-09-01", "2020-06-01"))
    assert clean(check_splits(make_splits(panel().times, config)))


def shares(*members: str) -> dict[str, float]:
    return dict.fromkeys(members, 1 / len(members))


def test_champion_selected_on_test_is_found() -> None:
    validation = {"g00s00": 1.2, "g00s01": 0.7, "g00s02": 0.9}
    test = {"g00s00": 0.1, "g00s01": 1.9, "g00s02": 0.4}
    recorded = {agent: (value, value) for agent, value in validation.items()}
    assert clean(check_selection(recorded, validation, shares("g00s00", "g00s02"), shares("g00s02", "g00s00")))
    # The leaderboard holds test scores: the first agent whose score is not that of validation is named.
    finding = only(
        check_selection(
            {agent: (value,) for agent, value in test.items()}, validation, shares("g00s01"), shares("g00s01")
        )
    )
    assert finding.part == "the champion's selection"
    assert "selected on other bars (3 of 3 scores differ)" in finding.message
    # The leaderboard is right, the selection is not.
    finding = only(check_selection(recorded, validation, shares("g00s01"), shares("g00s00", "g00s02")))
    assert "it consists of g00s01, and validation selects g00s00, g00s02" in finding.message
    # The scores are right, but not the saved returns, which decide about the members.
    finding = only(check_selection({**recorded, "g00s01": (0.7, 1.9)}, validation, shares("g00s01"), shares("g00s01")))
    assert "(1 of 3 scores differ)" in finding.message
    # The members are right, their shares are not.
    by_hand = {"g00s00": 0.9, "g00s02": 0.1}
    finding = only(check_selection(recorded, validation, by_hand, shares("g00s00", "g00s02")))
    assert finding.part == "the champion's shares"
    assert "is 0.900, and the rule of selection gives 0.500" in finding.message


# ---------------------------------------------------------------------- warm-up, fills, data, determinism


def test_strategy_that_needs_more_history_is_found() -> None:
    subject = sound_pipeline(strategies={"whole_history": WholeHistory()})
    finding = only(check_warm_up(subject, 200, PROBES, deployed=True))
    assert (finding.check, finding.part) == ("warm-up", "strategy whole_history")
    (warning,) = check_warm_up(subject, 200, PROBES)  # a backtest reads the whole history
    assert (warning.status, warning.part) == ("warn", finding.part)


def test_feature_with_infinite_memory_is_found() -> None:
    def since_first_bar(prices: Panel) -> Any:
        return np.log(prices.close / prices.close[0])

    with registered_feature("since", since_first_bar) as name:
        finding = only(
            check_warm_up(sound_pipeline(names=(*FEATURES, name), strategies={}), 400, PROBES, deployed=True)
        )
    assert finding.part == "feature since"
    assert clean(check_warm_up(sound_pipeline(names=("macd",), strategies={}), 400, PROBES))
    # Its averages over 12 and 26 bars have not converged after thirty.
    assert (
        only(check_warm_up(sound_pipeline(names=("macd",), strategies={}), 30, PROBES, deployed=True)).part
        == "feature macd"
    )


def test_warm_up_too_short_for_any_feature_is_found() -> None:
    subject = sound_pipeline(names=("momentum_252_21",), strategies={}, make_env=None)
    finding = only(check_warm_up(subject, 100, PROBES, deployed=True))
    assert (finding.check, finding.part) == ("warm-up", "features")
    assert "are too few" in finding.message


@pytest.mark.parametrize("opens", [False, True])
def test_fill_at_the_observed_close_is_found(opens: bool) -> None:
    full = panel(opens=opens)
    frozen = normaliser_of(full)
    subject = sound_pipeline(full, build=lambda p: build_market(p, FEATURES, frozen, "same_close"), make_env=None)
    finding = only(check_fills(subject))
    assert (finding.check, finding.part) == ("fills", "the market's fill price")
    assert "at the close that it observed" in finding.message
    assert finding.bar == "2018-01-01"


def test_environment_that_fills_at_the_observed_close_is_found() -> None:
    finding = only(check_fills(sound_pipeline(make_env=environment(SameCloseEnv))))
    assert finding.part == "the environment's fill price"
    assert "the environment did not fill at the next close" in finding.message


def test_interest_on_cash_is_not_mistaken_for_a_fill() -> None:
    rates = EnvironmentConfig(envs=8, group=4, window=20, cash_rates=(("2000-01-01", 0.3),))
    assert [f.status for f in check_fills(sound_pipeline(make_env=audit_env_factory(rates)))] == ["pass"]


def test_flaws_are_warnings_and_invalid_prices_are_failures() -> None:
    findings = check_data(panel())
    assert [f.part for f in findings] == ["survivorship"]
    assert findings[0].status == "warn"
    close = panel().close.copy()
    close[30:, 1] *= 2
    jumped = make_panel(panel().times, list("ABCD"), {"close": close})
    warned = {f.part: f for f in check_data(jumped)}
    assert warned["B"].bar == str(panel().times[30].astype("datetime64[D]"))
    assert clean(check_data(jumped))
    close[40, 2] = -1.0
    assert not clean(check_data(dataclasses.replace(panel(), close=close)))


@pytest.mark.slow
def test_random_strategies_and_features_are_found() -> None:
    finding = only(check_determinism(sound_pipeline(strategies={"random": RandomStrategy()})))
    assert (finding.check, finding.part) == ("determinism", "strategy random")
    assert finding.bar == str(panel().times[OUT_OF_SAMPLE].astype("datetime64[D]"))
    rng = np.random.default_rng(0)
    with registered_feature("noise", lambda p: rng.normal(size=p.close.shape)) as name:
        assert only(check_determinism(sound_pipeline(names=(name,), make_env=None))).part == "feature noise"


@pytest.mark.slow
def test_pipeline_without_strategies_or_environment_passes() -> None:
    pipeline: Pipeline = sound_pipeline(strategies={}, make_env=None)
    assert clean(
        [
            *check_lookahead(pipeline, 2),
            *check_warm_up(pipeline, 300, 2),
            *check_fills(pipeline),
            *check_determinism(pipeline),
        ]
    )


def test_fingerprints_change_with_every_cell_and_its_place() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(9_000, 5))  # more than one block
    table[3, 2] = np.nan
    before = row_fingerprints(table)
    assert np.array_equal(before, row_fingerprints(table.copy()))
    assert len(np.unique(before)) == len(table)
    for t, n in rng.integers(0, (9_000, 5), (50, 2)):
        changed = table.copy()
        changed[t, n] = np.nextafter(np.nan_to_num(changed[t, n]), 10)
        assert (row_fingerprints(changed) != before).nonzero()[0].tolist() == [t]
    assert (row_fingerprints(table[:, ::-1]) != before).all()
    flags = rng.random((10, 5)) < 0.5
    assert (row_fingerprints(flags) != row_fingerprints(~flags)).all()
