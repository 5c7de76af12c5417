"""The first paragraph of a verdict: its cases, and when a champion is called practically its base."""

from __future__ import annotations

import re
from typing import Any

import pytest
from finrl_pod_app.report.columns import return_interval
from finrl_pod_app.report.records import PracticallyBase, Rung, RungPeriod, RunReport, make_report
from finrl_pod_app.report.verdict_text import account_sentence, luck_sentence, verdict_paragraph

START = r"^(Not promoted|Promoted)\. Mean active return on test after costs: ([+-][\d.]+%) per year over (.+?), "
INTERVAL = r"90% interval ([+-][\d.]+)% to ([+-][\d.]+)%, which includes 0\."
TEST = {"p_value": 0.2, "z_score": 0.8, "test": 0.8}


def edge(case: str, **changes: Any) -> dict[str, Any]:
    values = {
        "case": case, "p_active": 0.1, "p_alpha": 0.2, "p_value": 0.2, "level": 0.0125, "beta": 1.05,
        "active_return": {"value": 0.008, "low": -0.003, "high": 0.019}, "interval_level": 0.9,
        "alpha": {"value": 0.005, "low": -0.006, "high": 0.016}, "tracking_error": 0.02, "information_ratio": 0.4,
        "detectable_ratio": 0.81, "years": 12.0, "minimum": 0.0025, "reference": "mandate_at_tilt_zero",
        "portfolio": "equal_weight", "where": "on test", "is_demonstration": False,
        "account": {"sharpe": 0.55, "volatility": 0.165, "drawdown": -0.33},
        "base": {"sharpe": 0.5, "volatility": 0.16, "drawdown": -0.32},
        "tests": {"active": TEST, "alpha": TEST, "beta": 1.05},
    }  # fmt: skip
    return values | changes


def report(case: str, promoted: bool = False, **changes: Any) -> RunReport:
    found = edge(case, **changes)
    rules = [
        {"name": name, "value": 0.0, "limit": 0.0125, "passed": passed, "sentence": ""}
        for name, passed in (("edge", case == "shown"), ("audit", promoted))
    ]
    verdict = {"promoted": promoted, "edge": found, "rules": rules, "reasons": ["a reason"], "looks": 2}
    return make_report({"verdict": verdict})


def rung(name: str, validation: float, test: float) -> Rung:
    periods = [
        RungPeriod(active_return=0.0, alpha=alpha, tracking_error=0.01, sharpe_difference=0.0, turnover=1.0)
        for alpha in (validation, test)
    ]
    return Rung(rung=name, deployed=False, validation=periods[0], test=periods[1])


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("worse", "The champion is worse: the whole interval lies below 0."),
        (
            "too_small",
            "An edge is shown, but it is too small to matter: the smaller of active return and alpha is 0.50% per "
            "year, less than 0.25%.",
        ),
        (
            "too_little_data",
            "Too little data: 12.0 years show an edge with a probability of 80% only if its information ratio is at "
            "least 0.8; the measured one is 0.4.",
        ),
        (
            "nothing_shown",
            "Nothing is shown: p-value 0.2, needed: at most 0.0125. An edge below 1.6% per year would be missed with a "
            "probability above 20%. Of the higher return, 0.3% was market risk (beta 1.05). A further look needs a "
            "p-value of at most 0.00625.",
        ),
    ],
)
def test_every_case_states_one_reference_and_one_interval(case: str, text: str) -> None:
    (line,) = verdict_paragraph(report(case))
    found = re.match(START + INTERVAL, line)
    assert found
    assert found.groups() == (
        "Not promoted",
        "+0.8%",
        "its base (equal weight, under the same trading rules)",
        "-0.3",
        "+1.9",
    )
    assert line.endswith(text)
    assert line.count(" to +") == 1
    assert line.count("interval") == 1 + (case == "worse")


def test_a_shown_edge_states_what_it_is_worth() -> None:
    found = report("shown", promoted=True, p_value=0.004)
    (line,) = verdict_paragraph(found)
    assert line.startswith("Promoted. Mean active return")
    assert "An edge is shown: 0.5% per year after costs and market risk, 500 per year on an account" in line
    assert "p-value 0.004, needed: at most 0.0125." in line
    assert line.endswith("Volatility 16.5% (base 16.0%), maximum drawdown 33.0% (base 32.0%).")
    ladder = (rung("base", 9.0, 9.0), rung("momentum", 0.01, -0.001), rung("low_volatility", 0.02, 0.003))
    (line,) = verdict_paragraph(found.model_copy(update={"ladder": ladder}))
    assert "The fixed tilt that was best on validation, low volatility, earns +0.3% of it." in line
    (line,) = verdict_paragraph(report("shown", p_value=0.004))
    assert line.startswith("Not promoted.")
    assert line.endswith("It is refused by other rules: audit.")


def test_years_that_were_used_before_are_no_success() -> None:
    first, line = verdict_paragraph(report("shown", promoted=True, p_value=0.004, is_demonstration=True))
    assert first.startswith("Demonstration: the makers of finrl_pod saw these years")
    assert "The test passes, on years that were used before: 0.5% per year" in line
    assert "edge is shown" not in line
    _, line = verdict_paragraph(report("too_small", is_demonstration=True))
    assert "edge is shown" not in line


@pytest.mark.parametrize(
    ("case", "changes", "answer"),
    [
        ("worse", {"p_value": 0.97}, "No: p-value 0.97,"),
        ("nothing_shown", {}, "Not shown: p-value 0.2, needed: at most 0.0125 at look 2."),
        ("too_little_data", {}, "Not shown, in too few years: p-value 0.2,"),
        ("too_small", {"p_value": 0.004}, "Yes, but too small to matter: p-value 0.004,"),
        (
            "shown",
            {"p_value": 0.004},
            "Yes: p-value 0.004, needed: at most 0.0125 at look 2. It is refused by other rules: audit.",
        ),
        ("shown", {"p_value": 0.004, "is_demonstration": True}, "Yes, on years that were used before: p-value 0.004,"),
    ],
)
def test_whether_a_difference_is_luck_is_answered_with_its_hurdle(
    case: str, changes: dict[str, Any], answer: str
) -> None:
    verdict = report(case, **changes).verdict
    assert verdict is not None
    assert luck_sentence(verdict).startswith(f"Is it more than luck? {answer}")
    assert luck_sentence(verdict.model_copy(update={"edge": None})) == ""


def test_an_interval_says_whether_it_includes_zero() -> None:
    (line,) = verdict_paragraph(report("worse", active_return={"value": -0.01, "low": -0.02, "high": -0.001}))
    assert "90% interval -2.0% to -0.1%." in line


def test_special_accounts() -> None:
    (line,) = verdict_paragraph(report("nothing_shown", portfolio="", reference="equal_weight"))
    assert "per year over equal weight (rebalanced monthly), 90% interval" in line
    flat = {"value": 0.0, "low": 0.0, "high": 0.0}
    (line,) = verdict_paragraph(report("nothing_shown", active_return=flat, alpha=flat, tracking_error=0.0))
    assert "+0.0% per year over its base" in line
    assert "would be missed" not in line
    assert "market risk" not in line
    (line,) = verdict_paragraph(
        report("nothing_shown", p_value=0.001, account={"sharpe": 0.45, "volatility": 0.16, "drawdown": -0.3})
    )
    assert "the tests pass, but its Sharpe ratio 0.450 is below 0.500 of the base" in line
    (line,) = verdict_paragraph(report("nothing_shown", alpha={"value": 0.009, "low": -0.1, "high": 0.1}))
    assert "Of the higher return, nothing was market risk" in line
    (line,) = verdict_paragraph(report("too_little_data", information_ratio=2.3))  # all of it is market risk
    assert line.endswith("needed: at most 0.0125. Of the higher return, 0.3% was market risk (beta 1.05).")
    (line,) = verdict_paragraph(report("nothing_shown").model_copy(update={"looks_so_far": 4}))
    assert line.endswith("A further look needs a p-value of at most 0.0025.")
    verdict = report("worse").to_dict()["verdict"]
    untested = make_report({"verdict": {**verdict, "edge": {}}})  # type: ignore[dict-item]
    assert verdict_paragraph(untested) == ["Not promoted. The test for an edge cannot be computed."]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-0.003, 0.009, "-0.3% to +0.9%"),
        (-0.0003, 0.0092, "-0.03% to +0.92%"),  # whether 0 lies inside is never rounded away
        (0.0011, 0.0024, "+0.11% to +0.24%"),
        (0.0, 0.0, "+0.00% to +0.00%"),
        (-0.142, -0.0000155, "-14.200% to -0.002%"),
    ],
)
def test_intervals_have_as_many_decimals_as_they_need(low: float, high: float, text: str) -> None:
    assert return_interval(low, high) == text


def test_practically_its_base_states_why() -> None:
    found = PracticallyBase.model_validate({
        "flag": True, "active_share": 0.021, "allowed": 0.231, "tracking_error": 0.0041, "cause": "small_weights",
        "best_year": {"year": "2020", "dollars": 312.4}, "worst_year": {"year": "2021", "dollars": -254.9},
        "base_return": 0.112, "desired_share": 0.02,
    })  # fmt: skip
    worse = report("worse").model_copy(update={"practically_base": found})
    assert verdict_paragraph(worse)[-1] == (
        "Practically its base: the mean active share on test is 2.1% where the mandate allows 23.1%, tracking error "
        "0.41% per year; the agent asks for small tilts. On an account of 100,000 its best year over the base was 2020 "
        "(+312), its worst 2021 (-255); the base alone, without training, returned +11.2% per year."
    )
    worse = worse.model_copy(update={"practically_base": found.model_copy(update={"flag": False})})
    assert len(verdict_paragraph(worse)) == 1


@pytest.mark.parametrize(
    ("name", "source", "symbols", "currency"),
    [
        ("sample", "skfolio", ("AAPL",), "dollars"),
        ("mine", "alpaca", ("AAPL",), "dollars"),
        ("mine", "yfinance", ("AAPL", "BRK-B"), "dollars"),
        ("mine", "yfinance", ("AAPL", "SAP.DE"), ""),
        ("mine", "file dax.csv", ("SAP",), ""),
    ],
)
def test_dollars_are_named_where_the_prices_are_in_dollars(
    name: str, source: str, symbols: tuple[str, ...], currency: str
) -> None:
    found = report("shown", promoted=True)
    data = found.data.model_copy(update={"name": name, "source": source, "symbols": symbols})
    assert data.currency == currency
    found = found.model_copy(update={"data": data})
    assert found.verdict is not None
    assert found.verdict.edge is not None
    texts = (account_sentence(found, found.verdict.edge), *verdict_paragraph(found))
    assert all(("dollars" in text) == bool(currency) for text in texts)
