"""The audit finds every planted fault, names it, and finds nothing where there is none."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.services.audit import small_env
from finrl_pod_strategies.rule_based import EqualWeight

from finrl_pod.data.panel import make_panel
from finrl_pod.data.splits import Span, Splits, make_splits
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.audit.determinism import determinism
from finrl_pod.evaluate.audit.fills import fills
from finrl_pod.evaluate.audit.flaws import flaws
from finrl_pod.evaluate.audit.leakage import chosen_on_validation, fitted, separated
from finrl_pod.evaluate.audit.lookahead import lookahead
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, clean, cut, permuted, perturbed
from finrl_pod.evaluate.audit.warmup import warm_up
from finrl_pod.settings.run import EnvironmentConfig, SplitConfig
from finrl_pod.types import MarketTensor, Panel
from tests.evaluate.audit.subjects import (
    FEATURES,
    MOMENTUM,
    SETTLED,
    Peeking,
    PeekingEnv,
    Registered,
    Remembering,
    Restless,
    SameCloseEnv,
    centred_average,
    environment,
    filled_backwards,
    honest,
    normaliser_of,
    panel,
    scaled_by_everything,
)

PROBES = 3


def only(findings: list[Finding]) -> Finding:
    (finding,) = [f for f in findings if f.status == "fail"]
    return finding


# ---------------------------------------------------------------------- nothing is found where there is nothing


@pytest.mark.parametrize("opens", [False, True])
def test_an_honest_pipeline_is_clean(opens: bool) -> None:
    subject = honest(panel(gap=True, opens=opens), strategies={"momentum": MOMENTUM})
    for check in (lambda p: lookahead(p, PROBES), lambda p: warm_up(p, 500, PROBES), fills, determinism):
        assert [f.status for f in check(subject)] == ["pass"]


def test_changes_leave_the_past_alone() -> None:
    whole = panel(gap=True)
    for changed in (perturbed(whole, 700, 1), permuted(whole, 700, 1)):
        assert np.array_equal(changed.close[:701], whole.close[:701], equal_nan=True)
        assert not np.array_equal(changed.close[701:], whole.close[701:], equal_nan=True)
        assert np.array_equal(changed.times, whole.times)
        assert whole.benchmark is not None
        assert changed.benchmark is not None
        assert np.array_equal(changed.benchmark.close[:701], whole.benchmark.close[:701])
        assert not np.array_equal(changed.benchmark.close[701:], whole.benchmark.close[701:])
    assert sorted(permuted(whole, 700, 1).close[701:, 0]) == sorted(whole.close[701:, 0])
    assert cut(whole, 3, 10).close.shape == (7, 4)


# ---------------------------------------------------------------------- look-ahead


def test_a_centred_moving_average_is_found() -> None:
    with Registered("centred", centred_average) as name:
        found = only(lookahead(honest(names=(*FEATURES, name)), PROBES))
    assert (found.check, found.part) == ("look-ahead", "feature centred")
    # A probe at bar t moves what is said from ten bars before it on.
    assert found.bar == str(panel().times[SETTLED - 9].astype("datetime64[D]"))


def test_a_feature_scaled_by_all_bars_is_found_beside_honest_ones() -> None:
    with Registered("scaled", scaled_by_everything) as name:
        found = only(lookahead(honest(names=(name, *FEATURES)), PROBES))
    assert found.part == "feature scaled"


def test_a_normaliser_that_is_fitted_again_on_everything_is_found() -> None:
    refitted = honest(build=lambda p: build_market(p, FEATURES, (0, len(p.times) - 1)))
    findings = lookahead(refitted, PROBES)
    # Ranks have the same mean and deviation on any bars: of these alone nothing can be told.
    assert {f.part for f in findings} == {f"the normaliser of {name}" for name in FEATURES if "rank" not in name}
    assert all(f.status == "fail" and "sees the future" in f.message for f in findings)


def test_a_back_fill_is_found() -> None:
    subject = honest(panel(gap=True), prepare=filled_backwards, make_env=None)
    # Probed within a gap: there the price of the next bar stands already.
    subject = dataclasses.replace(subject, panel=_with_probe_in_gap(subject.panel))
    findings = lookahead(subject, 40)
    assert {f.part for f in findings if f.status == "fail"} == {
        "the preparation of close",
        "the preparation of tradable",
    }
    assert "(prices)" in findings[0].message


def _with_probe_in_gap(whole: Panel) -> Panel:
    """The probes keep away from gaps of tickers that live on; one that starts late is no gap before it starts."""
    tradable = whole.tradable.copy()
    tradable[:750, 3] = False
    close = np.where(tradable, whole.close, np.nan)
    return dataclasses.replace(whole, close=close, tradable=tradable)


def test_an_environment_that_shows_tomorrow_is_found() -> None:
    found = only(lookahead(honest(make_env=environment(PeekingEnv)), PROBES))
    assert found.part in ("the environment's observation", "the environment's final observation")
    assert "(environment)" in found.message
    assert found.bar is not None
    assert found.bar >= str(panel().times[SETTLED - 30].astype("datetime64[D]"))


def test_a_strategy_that_knows_tomorrow_is_found_and_named_among_the_members() -> None:
    made: list[MarketTensor] = []
    frozen = normaliser_of(panel())

    def build(prices: Panel) -> MarketTensor:
        made.append(build_market(prices, FEATURES, frozen))
        return made[-1]

    peeking = Peeking(lambda: made[-1])

    class Whole:
        name, feature_names, lookback = "champion", FEATURES[:1], 2

        def target_weights(self, window: Any, positions: Any) -> Any:
            equal = np.full(4, 0.25)
            return (equal + peeking.target_weights(window, positions)) / 2

    strategies = {"champion": Whole(), "honest": EqualWeight(), "peeking": peeking}
    found = only(lookahead(honest(build=build, strategies=strategies), PROBES))
    assert found.part == "strategy peeking"
    assert "(decisions)" in found.message


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


def test_a_normaliser_fitted_on_everything_is_found() -> None:
    whole = panel()
    market = build_market(whole, FEATURES, (0, len(whole.times) - 1))
    findings = fitted(market, market.normaliser, (0, SETTLED - 1))
    assert {f.part for f in findings} <= {f"the normaliser of {name}" for name in FEATURES}
    assert len(findings) >= 3
    assert findings[0].bar == str(whole.times[SETTLED].astype("datetime64[D]"))
    honest_one = build_market(whole, FEATURES, (0, SETTLED - 1))
    assert clean(fitted(honest_one, honest_one.normaliser, (0, SETTLED - 1)))


def test_splits_that_share_bars_or_rewards_are_found() -> None:
    assert [f.status for f in separated(splits(), 494)] == ["pass"]
    assert [f.status for f in separated(splits())] == ["pass"]
    late = only(separated(splits(), 495))
    assert late.part == "training environments"
    assert late.bar == str(panel().times[497].astype("datetime64[D]"))
    overlapping = dataclasses.replace(splits(), validation=Span(490, 690))
    assert only(separated(overlapping)).part == "train and validation"
    short = separated(splits(embargo=0))
    assert [f.status for f in short] == ["warn", "warn"]
    config = SplitConfig(("2018-01-01", "2019-01-31"), ("2019-02-01", "2019-08-31"), ("2019-09-01", "2020-06-01"))
    assert clean(separated(make_splits(panel().times, config)))


def test_a_champion_picked_on_test_is_found() -> None:
    validation = {"g00s00": 1.2, "g00s01": 0.7, "g00s02": 0.9}
    test = {"g00s00": 0.1, "g00s01": 1.9, "g00s02": 0.4}
    assert clean(chosen_on_validation(validation, validation, ["g00s00", "g00s02"]))
    # The leaderboard holds test scores: the first agent whose score is not that of validation is named.
    found = only(chosen_on_validation(test, validation, ["g00s01"]))
    assert found.part == "the champion's selection"
    assert "picked on other bars (3 of 3 scores are off)" in found.message
    # The leaderboard is right, the choice is not.
    found = only(chosen_on_validation(validation, validation, ["g00s01"]))
    assert "g00s00 has a Sharpe ratio of 1.2000 there and was passed over for a member with 0.7000" in found.message


# ---------------------------------------------------------------------- warm-up, fills, data, determinism


def test_a_memory_that_is_longer_than_stated_is_found() -> None:
    found = only(warm_up(honest(strategies={"remembering": Remembering()}), 200, PROBES))
    assert (found.check, found.part) == ("warm-up", "strategy remembering")


def test_a_feature_that_never_forgets_is_found_and_an_average_that_nearly_does_is_not() -> None:
    def since_the_beginning(prices: Panel) -> Any:
        return np.log(prices.close / prices.close[0])

    with Registered("since", since_the_beginning) as name:
        found = only(warm_up(honest(names=(*FEATURES, name), strategies={}), 400, PROBES))
    assert found.part == "feature since"
    assert clean(warm_up(honest(names=("macd",), strategies={}), 400, PROBES))
    # Its averages over 12 and 26 bars have not settled after thirty.
    assert only(warm_up(honest(names=("macd",), strategies={}), 30, PROBES)).part == "feature macd"


def test_a_warm_up_that_defines_no_feature_is_found() -> None:
    found = only(warm_up(honest(names=("momentum_252_21",), strategies={}, make_env=None), 100, PROBES))
    assert (found.check, found.part) == ("warm-up", "features")
    assert "are too few" in found.message


@pytest.mark.parametrize("opens", [False, True])
def test_a_fill_at_the_observed_close_is_found(opens: bool) -> None:
    whole = panel(opens=opens)
    frozen = normaliser_of(whole)
    subject = honest(whole, build=lambda p: build_market(p, FEATURES, frozen, "same_close"), make_env=None)
    found = only(fills(subject))
    assert (found.check, found.part) == ("fills", "the market's fill price")
    assert "at the very close that it was made on" in found.message
    assert found.bar == "2018-01-01"


def test_an_environment_that_fills_at_the_observed_close_is_found() -> None:
    found = only(fills(honest(make_env=environment(SameCloseEnv))))
    assert found.part == "the environment's fill price"
    assert "it did not fill at the next close" in found.message


def test_interest_on_cash_is_no_fill() -> None:
    rates = EnvironmentConfig(envs=8, group=4, window=20, cash_rates=(("2000-01-01", 0.3),))
    assert [f.status for f in fills(honest(make_env=small_env(rates)))] == ["pass"]


def test_flaws_are_told_and_a_broken_price_fails() -> None:
    findings = flaws(panel())
    assert [f.part for f in findings] == ["survivorship"]
    assert findings[0].status == "warn"
    close = panel().close.copy()
    close[30:, 1] *= 2
    jumped = make_panel(panel().times, list("ABCD"), {"close": close})
    warned = {f.part: f for f in flaws(jumped)}
    assert warned["B"].bar == str(panel().times[30].astype("datetime64[D]"))
    assert clean(flaws(jumped))
    close[40, 2] = -1.0
    assert not clean(flaws(dataclasses.replace(panel(), close=close)))


def test_what_is_not_the_same_twice_is_found() -> None:
    found = only(determinism(honest(strategies={"restless": Restless()})))
    assert (found.check, found.part) == ("determinism", "strategy restless")
    assert found.bar == str(panel().times[SETTLED].astype("datetime64[D]"))
    rng = np.random.default_rng(0)
    with Registered("noise", lambda p: rng.normal(size=p.close.shape)) as name:
        assert only(determinism(honest(names=(name,), make_env=None))).part == "feature noise"


def test_a_pipeline_without_strategies_or_environment_is_audited_too() -> None:
    bare: Pipeline = honest(strategies={}, make_env=None)
    assert clean([*lookahead(bare, 2), *warm_up(bare, 300, 2), *fills(bare), *determinism(bare)])
