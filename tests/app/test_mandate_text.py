"""The sentence on what a strategy earned over its base, and the rows of the mandate's tables."""

from __future__ import annotations

from typing import Any

import pytest
from finrl_pod_app.report.mandate_text import (
    ADDED,
    USAGE,
    added_rows,
    comparison_sentence,
    ladder_sentence,
    mandate_settings,
    return_sentence,
    usage_rows,
)
from finrl_pod_app.report.records import Added, Comparison, MandateUsage, RunReport, make_report

from finrl_pod.settings.run import MandateConfig
from tests.app.report_data import page_of, synthetic_document, synthetic_results


def added() -> dict[str, Any]:
    interval = {"value": 0.3, "low": -0.5, "high": 1.1}
    return {
        "base": "mandate_at_tilt_zero",
        "level": 0.9,
        "value": 0.01,
        "low": -0.02,
        "high": 0.04,
        "sharpe": {"champion": 1.07, "base": 1.06},
        "active_return": {"value": 0.0042, "low": -0.00003, "high": 0.0094},
        "information_ratio": interval,
        "alpha": interval,
        "beta": interval,
        "tracking_error": 0.01,
        "years_to_show": 30.07,
    }


def mandate(base: str = "equal_weight") -> dict[str, Any]:
    return {"base": base, "tilt": 0.5, "trade_speed": 0.05, "max_turnover": 0.0, "volatility_target": 0.2}


def test_what_a_strategy_earned_over_a_baseline_has_its_interval_and_p_value() -> None:
    found = {"of": "Mine", "base": "equal_weight", "level": 0.9, "p_value": 0.9831}
    found["active_return"] = {"value": -0.075, "low": -0.142, "high": -0.013}
    assert return_sentence(make_report({"comparison": found, "mandate": mandate()})) == (
        "After costs the mean return of Mine was 7.5% per year below equal weight (90% interval -14.2% to "
        "-1.3%); p-value of no edge 0.98, for this backtest alone."
    )
    found["active_return"] = {"value": -0.016, "low": -0.033, "high": -0.0000155}
    assert "(90% interval -3.300% to -0.002%)" in comparison_sentence(Comparison.model_validate(found))
    assert comparison_sentence(Comparison.model_validate({**found, "of": "champion"})).startswith(
        "After costs the mean return of the champion was"
    )


def test_no_comparison_gives_no_sentence() -> None:
    assert return_sentence(RunReport()) == ""


def test_a_champion_is_compared_with_its_base() -> None:
    assert return_sentence(make_report({"added": added(), "in_sample": "Warning: ..."})) == (
        "In sample, after costs the mean return of the champion was 0.4% per year above the mandate at tilt "
        "zero (90% interval -0.003% to +0.940%)."
    )


def test_a_champion_is_also_compared_with_a_chosen_benchmark() -> None:
    chosen = {"of": "champion", "base": "^DJI", "level": 0.9, "p_value": 0.5}
    chosen["active_return"] = {"value": 0.01, "low": -0.02, "high": 0.04}
    text = return_sentence(make_report({"added": added(), "comparison": chosen}))
    assert text.count("the mean return of the champion was") == 2
    assert text.endswith("above ^DJI (90% interval -2.0% to +4.0%); p-value of no edge 0.5, for this backtest alone.")


def test_settings_name_limits_that_are_off() -> None:
    settings = mandate_settings(MandateConfig("inverse_volatility", volatility_target=0.2))
    assert settings["base"] == "inverse volatility"
    assert settings["max turnover"] == "off"
    assert settings["volatility target"] == "0.2"
    assert mandate_settings(MandateConfig("none")) == {"base": "none: weights are unconstrained"}


def test_rows_format_every_measure() -> None:
    period = MandateUsage.model_validate({measure.key: 0.25 for measure in USAGE})
    rows = dict(
        zip(
            (m.key for m in USAGE),
            (cells for _, cells in usage_rows({"test": MandateUsage(), "validation": period})),
            strict=True,
        )
    )
    assert rows["active_share"] == ["25.0%", "–"]
    assert rows["effective_holdings"] == ["0.2", "–"]
    assert rows["turnover"] == ["0.25×", "–"]
    statistics = added_rows(Added.model_validate(added()))
    assert [measure.key for measure, _, _ in statistics] == [*(m.key for m in ADDED), "years_to_show"]
    shown = {measure.key: (value, interval) for measure, value, interval in statistics}
    assert shown["active_return"] == ("+0.42%", "-0.003% to +0.940%")
    assert shown["alpha"] == ("+30.00%", "-50.0% to +110.0%")
    assert shown["beta"] == ("0.300", "-0.500 to 1.100")
    assert shown["information_ratio"] == ("0.30", "-0.50 to 1.10")
    assert shown["sharpe"] == ("+0.010", "-0.020 to +0.040")
    assert shown["years_to_show"] == ("30", "–")
    assert added_rows(Added.model_validate({**added(), "years_to_show": None}))[-1][1] == "never"


@pytest.mark.slow
def test_page_shows_the_tables() -> None:
    results = synthetic_results(bars=60)
    document = synthetic_document(results)
    assert "<h2>Mandate</h2>" not in page_of(document, results)
    usage = {name: {measure.key: 0.5 for measure in USAGE} for name in ("validation", "test")}
    parts = {"mandate": mandate(), "added": added(), "mandate_usage": usage}
    results["mandate_at_tilt_zero"] = results["equal_weight"]
    page = page_of(document | parts, results)
    body = page.split("<h2>Mandate</h2>")[1].split("</section>")[0]
    assert body.count("<table>") == 1
    assert "Transfer coefficient" in body
    active = page.split("<h2>Active return</h2>")[1].split("</section>")[0]
    assert active.count("<table>") == 1
    assert page.count('id="chart-active"') == 1
    assert "stationary bootstrap" in active
    assert "<dt>tilt</dt><dd>0.5</dd>" in body


def test_a_champion_that_is_no_agent_is_the_solved_policy() -> None:
    results = synthetic_results()
    document = {**synthetic_document(results), "ladder": []}
    assert ladder_sentence(make_report(document)) == ""
    document["champion"] |= {"members": ("closed_form",), "algorithm": "closed_form"}
    document |= {"split": "validation", "verdict": None}
    document["splits"] = {"test": document["splits"]["validation"]}
    sentence = ladder_sentence(make_report(document))
    assert sentence.startswith("Deployed: the solved linear policy")
    page = page_of(document, results)
    assert page.count(sentence) == 2  # on the first page and beside the leaderboard
    assert "the best of the leaderboard" not in page
