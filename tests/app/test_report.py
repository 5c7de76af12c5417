"""report.json and report.html: contents, escaping, missing values and failed writes."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.report import records
from finrl_pod_app.report.builder import rule_sentences, yearly_returns
from finrl_pod_app.report.html import write_report
from finrl_pod_app.report.mandate_text import USAGE
from finrl_pod_app.report.records import make_report, parse_report, schema

from finrl_pod.errors import RunError
from finrl_pod.files import to_plain, write_json
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import Benchmark, Panel
from tests.app.report_data import STRATEGIES, SYMBOLS, page_of, synthetic_document, synthetic_report, synthetic_results

POSITIVE = {"level", "account", "impact", "participation", "half", "zero", "hyperparameters", "timing"}


class Page(HTMLParser):
    """Parses a page into the URLs it loads, its table rows, and its text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag if tag in ("script", "style") else ""
        self.loads += [value or "" for name, value in attrs if name in ("src", "href") and str(value)[:1] != "#"]
        self.targets += [str(value)[1:] for name, value in attrs if name == "href" and str(value)[:1] == "#"]
        self.ids += [str(value) for name, value in attrs if name == "id"]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            return
        self.text += data
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def page() -> str:
    results = synthetic_results()
    return page_of(synthetic_document(results), results)


def test_document_has_the_documented_keys() -> None:
    document = synthetic_document(synthetic_results())
    assert set(document["data"]) >= {"name", "sha256", "symbols", "start", "end", "columns", "flaws"}
    assert document["splits"]["test"] == ["2019-01-02", "2022-12-28"]
    assert document["splits"]["embargo"] == 5
    assert set(document["champion"]) == {
        "id", "algorithm", "members", "shares", "roots", "mean_correlation", "selection", "lineage"
    }  # fmt: skip
    assert set(document["leaderboard"][0]) >= {"id", "parent", "generation", "score", "hyperparameters"}
    assert next(iter(document["test"]["strategies"])) == "champion"
    assert set(document["verdict"]) == {"promoted", "reasons", "rules", "trials", "looks", "edge", "statistics"}
    assert set(document["timing"]) >= {"samples", "training_seconds", "scoring_seconds", "total_seconds"}
    assert document["seed"] == 7
    assert len(document["config_sha256"]) == len(document["data"]["sha256"]) == 64


def test_nan_becomes_null_and_keys_are_sorted(tmp_path: Path) -> None:
    document = synthetic_document(synthetic_results())
    assert document["test"]["strategies"]["index"]["sortino"] is None
    text = write_json(tmp_path / "report.json", document).read_text()
    read = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert read == document
    assert list(read) == sorted(read)


def test_to_plain_converts_numpy_values_and_rejects_others() -> None:
    mixed = {"a": np.float32(0.5), "b": (np.int64(3), np.bool_(True)), "c": np.array([1.0, np.inf]), 4: None}
    assert to_plain(mixed) == {"a": 0.5, "b": [3, True], "c": [1.0, None], "4": None}
    assert to_plain(np.datetime64("2020-01-02T00:00", "ns")) == "2020-01-02"
    with pytest.raises(TypeError, match="Path"):
        to_plain({"where": Path()})


def test_yearly_returns_match_pandas() -> None:
    result = synthetic_results()["champion"]
    series = pd.Series(result.equity, pd.DatetimeIndex(result.times))
    lasts = series.resample("YE").last()
    expected = lasts / lasts.shift(1).fillna(series.iloc[0]) - 1
    yearly = yearly_returns(result.times, result.equity)
    assert list(yearly) == [str(time.year) for time in expected.index]
    assert list(yearly.values()) == pytest.approx(list(expected))
    growth = np.prod([1 + value for value in yearly.values()])
    assert growth == pytest.approx(result.equity[-1] / result.equity[0])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "fill at the next bar's close, because the data has no opening prices"),
        ({"cash": 25_000.0}, "Accounts start with 25,000 in cash; amounts are in the currency of the prices."),
        ({"fill": "same_close"}, "Warning: orders fill at the close they were decided on"),
        ({"whole_shares": True}, "Warning: whole shares on adjusted prices"),
        ({"cost_bps": 2.5}, "2.5 basis points"),
        ({"short": True, "leverage": 2.0}, "2 times equity; short positions are allowed"),
        ({"leverage": 1.5}, "1.5 times equity; short positions are not allowed"),
        ({"turbulence_limit": 140.0}, "above 140"),
    ],
)
def test_rule_sentences(changes: dict[str, object], expected: str) -> None:
    day = np.array(["2020-01-02"], dtype="datetime64[ns]")
    panel = Panel(day, ("A",), np.ones((1, 1)), np.ones((1, 1), bool), cash_rates=(("2020-01-01", 0.0),))
    text = " ".join(rule_sentences(replace(EnvironmentConfig(), **changes), panel))
    assert expected in text
    assert ("Warning" in text) == expected.startswith("Warning")


def test_bars_without_a_cash_rate_are_warned_of() -> None:
    days = np.arange("2023-12-30", "2024-01-03", dtype="datetime64[D]").astype("datetime64[ns]")
    ones = np.ones((4, 1))
    panel = Panel(days, ("A",), ones, ones.astype(bool))
    for rules, rates, missing in (
        ((), (), 4),
        ((), (("2023-12-31", 0.05), ("2024-01-01", float("nan"))), 3),
        ((("2024-01-01", 0.02),), (), 2),
        ((), (("2020-01-01", 0.05),), 0),
    ):
        sentences = rule_sentences(EnvironmentConfig(cash_rates=rules), replace(panel, cash_rates=rates))
        warning = f"Warning: there is no cash rate on {missing} of 4 bars"
        assert any(sentence.startswith(warning) for sentence in sentences) == (missing > 0)
        assert any("excess returns over US Treasury bills" in sentence for sentence in sentences) == bool(rates)


def test_costs_on_bars_before_2001_are_named() -> None:
    days = np.array(["1989-06-01", "2000-06-01", "2001-06-01"], dtype="datetime64[ns]")
    ones = np.ones((3, 1))
    panel = Panel(days, ("A",), ones, ones.astype(bool), spread=ones / 100)
    for half_spread, expected in (
        ("constant", "Warning: 2 bars before 2001 are charged the costs of today"),
        (
            "by era",
            "Costs by era, on top of that: on the 2 bars before 2001 a trade costs 70 basis points before 1980",
        ),
        ("from data", "half the asset's quoted spread"),
    ):
        text = " ".join(rule_sentences(EnvironmentConfig(half_spread=half_spread), panel))
        assert expected in text
        assert ("before 2001" in text) == (half_spread != "from data")


def test_rule_sentences_for_open_and_unadjusted_prices() -> None:
    ones = np.ones((1, 1))
    panel = Panel(np.zeros(1, "datetime64[ns]"), ("A",), ones, ones.astype(bool), open=ones, adjusted=False)
    panel = replace(panel, benchmark=Benchmark("S&P 500", np.ones(1), price_only=True))
    text = " ".join(rule_sentences(EnvironmentConfig(whole_shares=True), panel))
    assert "next bar's open" in text
    assert "S&P 500 price index, without dividends; stock prices exclude them" in text
    assert "Whole shares." in text


def test_page_is_self_contained_and_complete(page: str) -> None:
    shown = Page(page)
    assert "$" not in shown.text  # prices may be in any currency
    assert shown.loads == []
    # The charting library is in the page, once.
    assert page.count("plotly.js (basic") == 1
    for text in (
        *("Not promoted.", "contains zero", "Known data issues", "picked with hindsight"),
        *("2019-01-02 to 2022-12-28", "5 bars", "10 basis points", "torch 2.13.0"),
        *("from 2 roots (first ancestors g0p0, g0p1); the mean correlation of their", "on validation is 0.42."),
    ):
        assert text in shown.text
    for chart in ("equity", "rolling", "rolling-volatility", "rolling-beta", "weights"):
        assert page.count(f'id="chart-{chart}"') == 1


def test_charts_have_names_for_screen_readers(page: str) -> None:
    frames = re.findall(r'<div class="chart[^>]*>', page)
    assert len(frames) == page.count('<script type="application/json"')
    for frame in frames:
        assert 'role="figure"' in frame
        assert re.search(r'aria-label="\w[^"]{15,}"', frame), frame


def test_over_and_underweights_are_relative_to_the_base() -> None:
    results = synthetic_results(bars=60)
    report = synthetic_report(results)
    weights = report.active_weights
    assert report.base == "index"  # holds another asset in a real run
    assert weights is not None
    difference = (results["champion"].weights - results["index"].weights).mean(0)
    assert dict(weights.by_asset) == pytest.approx(dict(zip(SYMBOLS, difference, strict=True)))
    results["index"] = replace(results["index"], symbols=("SP500",), weights=np.ones((60, 1)))
    weights = synthetic_report(results).active_weights
    assert weights is not None
    assert weights.base == "equal_weight"


def test_metrics_table_shows_units_and_formatted_values(page: str) -> None:
    strategies = synthetic_document(synthetic_results())["test"]["strategies"]
    rows = Page(page).rows
    assert rows[0] == [
        *("strategy", "Total return%", "Annual return (CAGR)%", "Volatility%", "Sharpe ratio", "Sortino ratio"),
        *("Calmar ratio", "Max drawdown%", "Turnover× per year", "Costs paid"),
    ]
    assert [row[0] for row in rows[1:8]] == [name.replace("_", " ") for name in STRATEGIES[:7]]
    assert rows[8][0] == "momentum 12-1"
    champion = rows[1]
    assert champion[1] == f"{100 * strategies['champion']['cumulative_return']:.1f}"
    assert champion[4] == f"{strategies['champion']['sharpe']:.2f}"
    assert champion[9] == "12,346"
    index = next(row for row in rows if row[0] == "index")
    assert index[5] == "–"


def test_leaderboard_marks_members_and_omits_equal_hyperparameters(page: str) -> None:
    rows = Page(page).rows
    heads = next(row for row in rows if row[0] == "agent")
    assert heads == ["agent", "descends from", "generation", "score", "entropy coefficient", "learning rate"]
    assert [row[0] for row in rows if row[0].endswith("(member)")] == [f"g5p{i} (member)" for i in range(4)]


def test_lineage_of_members_is_shown_once(page: str) -> None:
    shown = Page(page)
    assert next(row for row in shown.rows if row[0] == "g5p1 (member)")[1] == "g4p3, g2p1, g0p1"
    assert shown.text.count("g2p1, g0p1") == 1
    assert next(row for row in shown.rows if row[0] == "g4p7")[1] == "g3p5"  # of others only the parent is known


def with_tiny_losses(value: Any) -> Any:
    """The same object with every float replaced by one just below zero, except sizes, which are positive."""
    if isinstance(value, dict):
        return {key: item if key in POSITIVE else with_tiny_losses(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_tiny_losses(item) for item in value]
    return -1e-9 if isinstance(value, float) else value


@pytest.mark.slow
def test_zero_is_never_negative() -> None:
    results = synthetic_results(bars=300)
    document = synthetic_document(results)
    interval = {"value": 0.1, "low": 0.1, "high": 0.1}
    statistics = ("active_return", "alpha", "beta", "information_ratio")
    added = {"base": "index", "level": 0.9, **interval, "sharpe": {"champion": 1.0, "base": 1.0}, "years_to_show": 2.0}
    added["tracking_error"] = 0.1
    curve = [{"account": 1e5, "active_growth": 0.1, "low": 0.1, "high": 0.1, "cost": 0.1}]
    capacity = {"base": "index", "adv": None, "impact": 1.0, "participation": 0.1, "level": 0.9, "curve": curve}
    document |= {
        "added": added | dict.fromkeys(statistics, interval),
        "mandate": {"base": "equal_weight"},
        "mandate_usage": {"test": {measure.key: 0.1 for measure in USAGE}},
        "attribution": {
            "by_asset": {"AAPL": 1.0},
            "by_year": [{"year": 2019, "profit": 1.0, "costs": 1.0, "carry": 1.0, "return": 0.1}],
        },
        "capacity": capacity | {"half": interval, "zero": interval},
    }
    curve = dict.fromkeys(("cumulative_return", "annual_return", "sharpe", "max_drawdown", "costs_paid"), 0.1)
    document["test"]["cost_curve"] = [{"cost_bps": 5, **curve}]
    shown = Page(page_of(with_tiny_losses(document), results))
    cells = [cell for row in shown.rows for cell in row]
    assert sum(bool(re.match(r"[+]?0(\.0+)?%?( |$)", cell)) for cell in cells) > 200
    assert re.findall(r"\S*(?<![\d.])-0(?:\.0+)?(?![\d.-])\S*", shown.text) == []


def test_names_are_escaped() -> None:
    evil = '</script><img src=x onerror="alert(1)">'
    results = synthetic_results(bars=60, names=("champion", evil))
    results["champion"] = replace(results["champion"], symbols=(*SYMBOLS[:-1], evil))
    document = synthetic_document(results)
    document["data"]["symbols"] = [evil]
    document["data"]["name"] = evil
    document["leaderboard"][0]["id"] = evil
    document["verdict"]["reasons"] = [evil]
    page = page_of(document, results)
    assert evil not in page
    assert "<img" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert Page(page).loads == []


@pytest.mark.slow
def test_page_is_deterministic(page: str) -> None:
    results = synthetic_results()
    assert page_of(synthetic_document(results), results) == page


def test_backtest_page_has_no_champion_sections(tmp_path: Path) -> None:
    results = synthetic_results(bars=60, names=("index",))
    document = {**synthetic_document(results), "champion": None, "verdict": None, "timing": None, "leaderboard": []}
    text = write_report(tmp_path / "new" / "folder", make_report(document), results).read_text()
    assert "<h1>Backtest of the index: sample" in text
    assert "Leaderboard" not in Page(text).text
    assert json.loads((tmp_path / "new" / "folder" / "report.json").read_text())["verdict"] is None
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "curves.safetensors",
        "report.html",
        "report.json",
    ]


def test_unwritable_folder_raises_and_keeps_existing_files(tmp_path: Path) -> None:
    results = synthetic_results(bars=60, names=("index",))
    (tmp_path / "file").write_text("user file")
    with pytest.raises(RunError, match=r"cannot write .*report.json"):
        write_report(tmp_path / "file", synthetic_report(results), results)
    assert (tmp_path / "file").read_text() == "user file"


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left"):
        write_json(path, {"a": 1})
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.slow
def test_optional_sections_appear_only_with_their_data() -> None:
    results = synthetic_results(bars=300)
    document = synthetic_document(results)
    plain = Page(page_of(document, results)).text
    for title in ("Promotion rules", "Backtest overfitting", "Sensitivity to costs", "bootstrap band"):
        assert title not in plain
    for title in ("Rolling Sharpe ratio", "Monthly returns", "Turnover and costs", "Distribution of returns"):
        assert title in plain
    document["verdict"] |= {
        "rules": [
            {"name": "edge", "value": 0.41, "limit": 0.05, "passed": False, "sentence": "no"},
            {"name": "drawdown", "value": None, "limit": 0.3, "passed": True, "sentence": "yes"},
        ],
        "trials": {"raw": 1234, "clustered": 17, "runs": 5},
        "looks": 3,
        "statistics": {
            "overfitting": {"pbo": 0.43, "splits": 12870, "logits": {"counts": [3, 4], "edges": [-1, 0, 1]}}
        },
    }
    document["test"]["cost_curve"] = [
        {
            "cost_bps": cost, "cumulative_return": 0.3, "annual_return": 0.1 - cost / 1e3, "sharpe": 1.0,
            "max_drawdown": -0.2, "costs_paid": 5.0,
        }
        for cost in (0.0, 10.0)
    ]  # fmt: skip
    shown = Page(page_of(document, results))
    assert ["edge: p-value", "0.41", "≤ 0.05", "no", "no"] in shown.rows
    assert ["0", "10.00", "1.000", "-20.00"] in shown.rows
    assert any(row[:3] == ["10 (this run)", "9.00", "1.000"] for row in shown.rows)
    assert any(row[:3] == ["maximum drawdown", "–", "≤ 30.0%"] for row in shown.rows)
    for text in (
        "1,234 trials (trained agents and champions) on this data by 5 runs, 17 of them distinct.",
        "Look 3 of 3 so far at bars that overlap",
        "overfitting 43%",
        "Sensitivity to costs",
    ):
        assert text in shown.text


def test_tear_sheet_of_a_short_series_has_no_rolling_sharpe() -> None:
    results = synthetic_results(bars=60, names=("equal_weight", "index"))
    sheet = synthetic_document(results)["test"]["tearsheet"]
    assert sheet["of"] == "equal_weight"
    assert set(sheet) == {"of", "drawdowns", "longest_drawdown", "monthly", "rolling_sharpe", "distribution", "costs"}
    assert sheet["rolling_sharpe"]["index"]["last"] is None
    assert "Rolling Sharpe" not in Page(page_of(synthetic_document(results), results)).text


def test_parts_that_do_not_fit_are_named_and_the_others_are_read() -> None:
    document = synthetic_document(synthetic_results(bars=60))
    report = parse_report(document)
    assert report == synthetic_report(synthetic_results(bars=60))
    assert report.to_dict() == document
    document["test"]["strategies"]["champion"]["turnover"] = "lots"
    document["champion"]["members"] = 3
    document["timing"] = ["fast"]
    document["version"] = 2
    del document["splits"]["test"]
    damaged = parse_report(document)
    assert [name.partition(":")[0] for name in damaged.damage] == [
        "version", "splits.test", "champion.members", "test.strategies.champion.turnover", "timing",
    ]  # fmt: skip
    assert damaged.champion is damaged.timing is None
    assert damaged.leaderboard == report.leaderboard
    assert damaged.test.strategies["champion"] == {
        name: value for name, value in report.test.strategies["champion"].items() if name != "turnover"
    }
    assert "turnover" not in damaged.to_dict()["test"]["strategies"]["champion"]  # type: ignore[index]


def test_the_schema_is_up_to_date() -> None:
    path = Path(records.__file__).with_name("report.schema.json")
    assert path.read_text("utf-8") == schema(), (
        "run: python -m finrl_pod_app.report.records > app/finrl_pod_app/report/report.schema.json"
    )


def test_parts_that_do_not_fit_are_named_and_the_others_shown() -> None:
    report = make_report({"seed": 3, "unknown": 1, "timing": {"samples": "many"}, "base_score": 0.5})
    assert (report.seed, report.base_score, report.timing) == (3, 0.5, None)
    assert {damage.partition(":")[0].partition(".")[0] for damage in report.damage} == {"unknown", "timing"}
