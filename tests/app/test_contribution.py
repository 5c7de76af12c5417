"""Sections on what a strategy adds: against the benchmark, by asset and year, by account size; and their figures."""

from __future__ import annotations

from typing import Any

import pytest
from finrl_pod_app.report import contribution
from finrl_pod_app.report.palette import line_styles
from finrl_pod_app.report.records import Attribution, make_report

from tests.app.report_data import page_of, synthetic_document, synthetic_results
from tests.app.test_report import Page

YEARS = [{"year": 2019, "profit": 1200.0, "costs": 10.0, "carry": 0.0, "return": 0.12}]
CAPACITY = {
    "base": "equal_weight",
    "adv": None,
    "impact": 1.0,
    "participation": 0.1,
    "level": 0.9,
    "curve": [
        {"account": 1e5, "active_growth": 0.02, "low": -0.01, "high": 0.05, "cost": 0.004},
        {"account": 1e6, "active_growth": 0.005, "low": -0.03, "high": 0.03, "cost": 0.02},
    ],
    "half": {"value": 4e5, "low": 0.0, "high": None},
    "zero": {"value": None, "low": 0.0, "high": None},
}

ACTIVE = {
    "base": "mandate_at_tilt_zero",
    "level": 0.9,
    "parts": {"market_beta": 0.001, "momentum": 0.02, "residual": 0.005, "costs": -0.002},
    "total": 0.024,
    "residual_interval": {"value": 0.005, "low": -0.011, "high": 0.021},
    "condition_number": 2.34,
}


def document_with(assets: int) -> dict[str, Any]:
    document = synthetic_document(synthetic_results())
    profits = {f"S{i}": 1000.0 - 60 * i for i in range(assets)}
    return document | {
        "attribution": {"by_asset": profits, "by_year": YEARS},
        "capacity": CAPACITY,
        "active_attribution": ACTIVE,
    }


@pytest.mark.parametrize("assets", [3, 40])
def test_profit_bars_add_up_to_the_profit(assets: int) -> None:
    document = document_with(assets)
    bars = contribution.profit_figure(Attribution.model_validate(document["attribution"])).data[0]
    assert sum(bars.x) == pytest.approx(sum(document["attribution"]["by_asset"].values()))
    assert bars.y[0] == "S0"
    assert len(bars.y) == min(assets, contribution.NAMED_ASSETS + 1)
    assert (f"{assets - contribution.NAMED_ASSETS} others" in bars.y) == (assets > contribution.NAMED_ASSETS)


@pytest.mark.slow
def test_the_page_has_the_sections_with_their_figures() -> None:
    document = document_with(5)
    page = page_of(document, synthetic_results())
    shown = Page(page)
    assert {"profit-by-asset-and-by-year", "capacity", "against-the-index"} <= set(shown.ids)
    assert contribution.year_cells(Attribution.model_validate(document["attribution"])) == [
        ["1,200", "10", "0", "12.0"]
    ]
    assert any(row[:4] == ["2019", "1,200", "10", "0"] for row in shown.rows)
    assert ["100,000", "+2.00", "-1.00 to +5.00", "0.40"] in shown.rows
    for row in (
        ["momentum", "+2.00"],
        ["residual", "+0.50", "-1.1% to +2.1%"],
        ["costs", "-0.20"],
        ["active return", "+2.40"],
    ):
        assert any(cells[: len(row)] == row for cells in shown.rows), row
    assert "of the champion over the mandate at tilt zero" in shown.text
    assert "condition number of 2.3" in shown.text
    assert "half of it remains at 400,000 (90% interval 0 to beyond the largest account)" in shown.text


@pytest.mark.parametrize(("holdings", "is_timed"), [(0.95, False), (0.7, True)])
def test_betas_that_disagree_are_called_timing(holdings: float, is_timed: bool) -> None:
    document = synthetic_document(synthetic_results())
    document["test"]["strategies"]["champion"] |= {"beta": 1.0, "holdings_beta": holdings}
    report = make_report(document)
    shown = contribution.benchmark(report, line_styles(report.test.strategies))
    assert ("is timing of beta" in shown) == is_timed


def test_sections_without_their_part_are_left_out() -> None:
    document = synthetic_document(synthetic_results())
    document["test"]["benchmark"] = None
    report = make_report(document)
    assert contribution.profit(report) == contribution.capacity_section(report) == ""
    assert contribution.active_parts(report) == ""
    assert contribution.benchmark(report, line_styles(report.test.strategies)) == ""


def test_names_of_assets_are_escaped() -> None:
    document = document_with(2)
    document["attribution"]["by_asset"] = {"<b>": 1.0}
    assert "<b>" not in contribution.profit(make_report(document)).replace("</b>", "")
