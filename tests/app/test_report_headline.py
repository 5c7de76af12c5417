"""The top of a report's page: run, date, key figures, contents; the curves beside it; and its size."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.report import builder, charts, first_page
from finrl_pod_app.report.headline import key_figures
from finrl_pod_app.report.html import write_report
from finrl_pod_app.report.palette import report_styles
from finrl_pod_app.report.records import RunReport, make_report
from finrl_pod_app.report.verdict_text import looks_sentence

from finrl_pod.errors import RunError
from tests.app.report_data import page_of, synthetic_document, synthetic_report, synthetic_results
from tests.app.test_report import Page

MAX_PAGE = 4_000_000  # bytes
RULE = {"name": "edge", "value": 0.2, "limit": 0.01, "passed": False, "sentence": ""}


@pytest.fixture(scope="module")
def page() -> str:
    results = synthetic_results()
    return page_of(synthetic_document(results), results, "my run", "2026-11-23")


def test_page_begins_with_run_date_and_key_figures(page: str) -> None:
    text = Page(page).text
    order = [
        "my run",
        "report of 2026-11-23",
        "Not promoted",
        "Growth over the base",
        "The champion is an ensemble of 4 trained agents",
        "years that neither its training nor its selection had seen",
        "It sold nothing short and borrowed nothing",
        "Total return",
        "Sharpe ratio",
        "Effective holdings",
        "Over- and underweights",
        "Equity",
    ]
    place = 0
    for part in order:
        place = text.index(part, place)
    assert page.index('id="chart-equity"') < page.index("<nav")  # equity is on the first screen
    assert len(page.encode()) < MAX_PAGE


def test_contents_link_to_every_section(page: str) -> None:
    shown = Page(page)
    assert len(shown.ids) == len(set(shown.ids))
    sections = re.findall(r'<section id="([^"]+)"', page)
    assert len(sections) > 10
    assert shown.targets == sections


@pytest.mark.slow
def test_refusals_are_stated_once() -> None:
    results = synthetic_results()
    document = synthetic_document(results)
    reason = document["verdict"]["reasons"][0]
    document["verdict"]["rules"] = [
        {"name": "edge", "value": 0.4, "limit": 0.1, "passed": False, "sentence": reason},
        {"name": "drawdown", "value": 0.2, "limit": 0.5, "passed": True, "sentence": "a drawdown of 20%"},
    ]
    text = Page(page_of(document, results)).text
    assert text.count(reason) == 1
    assert text.count("a drawdown of 20%") == 1


def test_key_figures_of_a_report() -> None:
    document = synthetic_document(synthetic_results())
    own = document["test"]["strategies"]["champion"]
    document["comparison"] = {
        "of": "champion",
        "base": "equal_weight",
        "level": 0.9,
        "active_return": {"value": 0.0123, "low": -0.004, "high": 0.0301},
        "p_value": 0.2,
    }
    figures = {figure.key: figure for figure in key_figures(make_report(document))}
    assert figures["sharpe"].text == f"{own['sharpe']:.2f}"
    assert figures["annual_return"].text == f"{100 * own['annual_return']:+.1f}%"
    assert figures["active_return"].text == "+1.2%"
    assert figures["active_return"].detail == "over equal weight; 90% interval -0.4% to +3.0%"
    del document["comparison"]["active_return"]
    base = document["test"]["strategies"]["equal_weight"]["annual_return"]
    figure = next(figure for figure in key_figures(make_report(document)) if figure.key == "active_return")
    assert figure.text == f"{100 * (own['annual_return'] - base):+.1f}%"
    assert all(figure.text == "–" for figure in key_figures(RunReport()))


def test_a_champion_without_training_and_an_account_with_debts_are_named() -> None:
    results = synthetic_results()
    document = synthetic_document(results)
    document["champion"] |= {"algorithm": "closed_form", "members": ["closed_form"]}
    account = results["champion"]
    text = first_page.tested(make_report(document), replace(account, weights=account.weights * 1.5))
    assert "a formula solved from past prices" in text
    assert "It sold nothing short and borrowed money" in text
    assert "20 symbols of the data set sample, such as AAPL, AMD and BAC" in text
    text = first_page.tested(make_report(document), replace(account, weights=account.weights - 0.1))
    assert "It sold something short and borrowed nothing" in text


def test_the_growth_over_the_base_has_its_last_value_and_first_year() -> None:
    results = synthetic_results()
    accounts = {name: results[name] for name in ("champion", "equal_weight")}
    figure = charts.active_growth_figure(accounts, "equal_weight", report_styles(accounts))
    growth = [accounts[name].equity[-1] / accounts[name].equity[0] for name in accounts]
    assert charts.label_end(figure) == figure.layout.annotations[0].text == f"{growth[0] / growth[1] - 1:+.1%}"
    assert figure.layout.xaxis.ticklabelmode == "period"
    assert str(figure.layout.xaxis.range[0]).startswith("2019-01-02")


@pytest.mark.slow
def test_curves_are_read_back(tmp_path: Path) -> None:
    results = synthetic_results()
    results["champion"] = replace(results["champion"], cost_parts={"commission": results["champion"].costs})
    write_report(tmp_path, synthetic_report(results), results)
    data = (tmp_path / builder.CURVES_FILE).read_bytes()
    read = builder.parse_curves(data)
    assert list(read) == list(results)
    for name, result in results.items():
        np.testing.assert_array_equal(read[name].times, result.times)
        np.testing.assert_allclose(read[name].equity, result.equity)
        np.testing.assert_allclose(read[name].turnover, result.turnover, rtol=1e-6)
    champion = read["champion"]
    np.testing.assert_allclose(champion.weights, results["champion"].weights, atol=1e-6)
    assert champion.symbols == results["champion"].symbols
    assert list(champion.cost_parts) == ["commission"]
    for damaged in (b"", data[:100], data[:-8], data.replace(b"equity", b"eqxity")):
        with pytest.raises(RunError, match=r"curves\.safetensors is damaged"):
            builder.parse_curves(damaged)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, ""),
        (
            {"looks": 3},
            "bars that overlap 2020-01-02 to 2023-12-29. Look n needs a p-value of at most 0.05 / (n (n + 1))",
        ),
        ({"looks": 1, "looks_so_far": 3}, "Look 1 of 3 so far at bars that overlap 2020"),
        ({"looks": 1, "looks_so_far": 3}, "0.025 at this one, 0.0025 at the next."),
        (
            {"verdict": {"promoted": False, "reasons": [], "looks": 2, "rules": [RULE]}},
            "at most 0.06 / (n (n + 1)) for an edge: 0.01 at",
        ),
    ],
)
def test_the_looks_and_their_cost_are_stated(document: dict[str, object], expected: str) -> None:
    sentence = looks_sentence(make_report({**document, "splits": {"test": ["2020-01-02", "2023-12-29"]}}))
    assert expected in sentence
    assert bool(sentence) == bool(document)
