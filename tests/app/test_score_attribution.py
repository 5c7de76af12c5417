"""What a champion mostly is: shares of features, the sentence, and the figures of report and dashboard."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.evaluation.score_attribution import score_attribution
from finrl_pod_app.report import score_attribution as page_parts
from finrl_pod_app.report.records import RunReport, ScoreAttribution, ScoredAsset, ScoredFeature, make_report
from finrl_pod_strategies.mandate_account import BasePortfolio, DecisionRecorder

from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.settings.run import MandateConfig
from tests.app.report_data import page_of, synthetic_document, synthetic_results
from tests.app.test_report import Page
from tests.data.panels import random_panel

SHARES = {"return_5_zscore": 0.76, "volatility_252": 0.15, "momentum_252_21": 0.07, "everything else": 0.02}


def attribution_of(shares: dict[str, float], *, assets: int = 3, of: Any = "active weights") -> ScoreAttribution:
    sides: dict[str, Any] = {"return_5_zscore": "low", "volatility_252": "low", "everything else": None}
    features = tuple(
        ScoredFeature(name=name, share=share, prefers=sides.get(name, "high"), by_date=(share, None))
        for name, share in shares.items()
    )
    rows = tuple(
        ScoredAsset(symbol=f"S{n}", score=float(-n), contributions=(-n - 1.0, *(0.0 for _ in features[2:]), 1.0))
        for n in range(assets)
    )
    dates = ("2019-01-02", "2019-02-01")
    return ScoreAttribution(of=of, dates=dates, features=features, last_date="2019-02-07", assets=rows)


def report_with(attribution: ScoreAttribution | None, **changes: Any) -> RunReport:
    document = synthetic_document(synthetic_results()) | changes
    return make_report(document).model_copy(update={"score_attribution": attribution})


WEIGHTS = "the active weights of the champion"


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        (
            SHARES,
            f"Three quarters of {WEIGHTS} are 5-day reversal (76%); next are 15% low 252-day volatility and 7% 12-1 "
            "momentum.",
        ),
        ({"trend_200": 0.97, "volatility_252": 0.03}, f"All of {WEIGHTS} are high 200-day trend (97%)."),
        (
            {"beta_252": -1.4, "residual_momentum": 1.3, "return_63": 1.1},
            f"More than all of {WEIGHTS} are residual momentum (130%); next are -140% high 252-day beta and 110% "
            "63-day momentum.",
        ),
        (
            {"macro.level": 0.28, "return_1": 0.26, "return_21": 0.24},
            f"No feature dominates {WEIGHTS}: 28% high macro.level, 26% 1-day momentum, 24% 21-day momentum.",
        ),
    ],
)
def test_the_sentence_says_what_an_agent_mostly_is(shares: dict[str, float], sentence: str) -> None:
    assert page_parts.score_sentence(report_with(attribution_of(shares))) == sentence


def test_bars_that_are_no_days_and_scores_without_a_mandate_are_called_so() -> None:
    report = report_with(attribution_of(SHARES, of="scores"), bars="Warning: hours")
    sentence = page_parts.score_sentence(report)
    assert sentence.startswith(
        "Three quarters of the differences between the scores of the champion are 5-bar reversal (76%)"
    )
    assert "252-21 momentum" in sentence
    assert page_parts.score_sentence(report_with(None)) == page_parts.reasons(report_with(None)) == ""


@dataclasses.dataclass
class TwoFeatures(BasePortfolio):
    """Scores are the first feature less twice the second one, and equal for all assets at some bars."""

    def target_weights(self, window: Any, positions: Any) -> Any:
        features = window.features
        combined = dataclasses.replace(window, features=(features[:, :1] - 2 * features[:, 1:]))
        weights = super().target_weights(combined, positions)
        assert self.scored_decision is not None
        rows = self.scored_decision.rows.new_tensor(np.nan_to_num(features)).unsqueeze(0)
        self.scored_decision = dataclasses.replace(
            self.scored_decision, rows=rows, features=self.feature_names, score=lambda x: x[0, :, 0] - 2 * x[0, :, 1]
        )
        return weights


@pytest.fixture(scope="module")
def recorded() -> tuple[DecisionRecorder, Any]:
    panel = random_panel()
    strategy = TwoFeatures(MandateConfig(tilt=0.01), feature_names=("return_5", "return_21"))
    recorder = DecisionRecorder(strategy)
    market = build_market(panel, strategy.feature_names, (0, len(panel.times) - 1))
    result = backtest(recorder, panel, MarketPeriod(market, 300, 380, ExecutionRules(), 1e6))
    return recorder, result


def _shares(values: Sequence[Any]) -> Any:
    """Shares of two features by covariance with the score: with tilts this small, active weights are linear in it."""
    parts = [np.zeros(2), 0.0]
    for decision in values:
        active = decision.scores - decision.scores[decision.tradable].mean()
        active = np.where(decision.tradable, active, 0) / decision.tradable.sum()
        parts[0] = parts[0] + active @ decision.contributions
        parts[1] += active @ decision.scores
    return parts[0] / parts[1]


def test_shares_are_of_the_desired_active_weights(recorded: tuple[DecisionRecorder, Any]) -> None:
    recorder, result = recorded
    found = score_attribution(recorder, result)
    assert found is not None
    shares = {feature.name: feature.share for feature in found.features}
    expected = _shares([decision.parts() for decision in recorder.monthly_decisions])
    assert [shares["return_5"], shares["return_21"]] == pytest.approx(expected.tolist(), abs=0.005)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert {feature.name: feature.prefers for feature in found.features} == {"return_21": "low", "return_5": "high"}
    assert found.features[0].name == "return_21"
    for place in range(len(found.dates)):
        assert sum(feature.by_date[place] or 0.0 for feature in found.features) == pytest.approx(1.0)
    assert [asset.score for asset in found.assets] == sorted((x.score for x in found.assets), reverse=True)
    for asset in found.assets:
        assert sum(asset.contributions) == pytest.approx(asset.score)


def test_equal_scores_have_no_attribution(recorded: tuple[DecisionRecorder, Any]) -> None:
    _, result = recorded
    panel = random_panel()
    recorder = DecisionRecorder(BasePortfolio(MandateConfig(), feature_names=("market_return_21",)))
    market = build_market(panel, ("market_return_21",), (0, len(panel.times) - 1))
    backtest(recorder, panel, MarketPeriod(market, 300, 310, ExecutionRules(), 1e6))
    assert score_attribution(recorder, result) is None


@pytest.mark.parametrize("assets", [3, 40])
def test_bars_add_up_to_scores_and_shares(assets: int) -> None:
    many = {f"f{i}": 0.1 for i in range(10)}
    attribution = attribution_of(many, assets=assets)
    scores = page_parts.scores_figure(attribution)
    *bars, markers = scores.data
    assert len(bars) == page_parts.NAMED_FEATURES + 1
    assert bars[-1].name == "3 others"
    assert len(markers.y) == min(assets, page_parts.NAMED_ASSETS)
    assert np.sum([bar.x for bar in bars], axis=0) == pytest.approx(np.array(markers.x))
    shares = page_parts.shares_figure(attribution)
    assert np.sum([bar.y for bar in shares.data], axis=0) == pytest.approx([1.0, 0.0])


@pytest.mark.slow
def test_the_page_has_the_section_and_escapes_names() -> None:
    results = synthetic_results()
    attribution = attribution_of({"<b>": 0.8, "return_1": 0.2})
    document = synthetic_document(results) | {"score_attribution": attribution.model_dump()}
    page = page_of(document, results)
    shown = Page(page)
    assert {"why-it-trades", "chart-score-shares", "chart-scores"} <= set(shown.ids)
    assert (
        "Four fifths of the active weights of the champion are high <b> (80%); next are 20% 1-day momentum."
        in shown.text
    )
    assert "high <b>" not in page
