"""The report: its object, its page, and that neither breaks on odd names, missing numbers or a full disk."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.report import figures
from finrl_pod_app.report.document import rule_sentences, write_json, yearly_returns
from finrl_pod_app.report.html import render, write_report
from finrl_pod_app.report.palette import styles

from finrl_pod.errors import RunError
from finrl_pod.files import to_plain
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import Benchmark, Panel
from tests.app.report_data import STRATEGIES, SYMBOLS, document, results


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


class Page(HTMLParser):
    """Collects what a page loads, its tables' rows, and its text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag if tag in ("script", "style") else ""
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
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
    made = results()
    return render(document(made), made)


def test_the_object_has_what_was_promised() -> None:
    made = document(results())
    assert set(made["data"]) >= {"name", "sha256", "symbols", "start", "end", "columns", "flaws"}
    assert made["splits"]["test"] == ["2019-01-02", "2022-12-28"]
    assert made["splits"]["embargo"] == 5
    assert set(made["champion"]) == {"id", "algorithm", "members", "lineage"}
    assert set(made["leaderboard"][0]) >= {"id", "parent", "generation", "score", "hyperparameters"}
    assert next(iter(made["test"]["strategies"])) == "champion"
    assert set(made["verdict"]) == {"promoted", "reasons"}
    assert set(made["timing"]) == {"samples", "train_seconds", "samples_per_second", "total_seconds"}
    assert made["seed"] == 7
    assert len(made["config_sha256"]) == len(made["data"]["sha256"]) == 64


def test_what_is_not_a_number_is_null_and_keys_are_sorted(tmp_path: Path) -> None:
    made = document(results())
    assert made["test"]["strategies"]["index"]["sortino"] is None
    text = write_json(tmp_path / "report.json", made).read_text()
    read = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert read == made
    assert list(read) == sorted(read)


def test_plain_values_only() -> None:
    mixed = {"a": np.float32(0.5), "b": (np.int64(3), np.bool_(True)), "c": np.array([1.0, np.inf]), 4: None}
    assert to_plain(mixed) == {"a": 0.5, "b": [3, True], "c": [1.0, None], "4": None}
    assert to_plain(np.datetime64("2020-01-02T00:00", "ns")) == "2020-01-02"
    with pytest.raises(TypeError, match="Path"):
        to_plain({"where": Path()})


def test_yearly_returns_agree_with_pandas() -> None:
    result = results()["champion"]
    series = pd.Series(result.equity, pd.DatetimeIndex(result.times))
    lasts = series.resample("YE").last()
    expected = lasts / lasts.shift(1).fillna(series.iloc[0]) - 1
    yearly = yearly_returns(result.times, result.equity)
    assert list(yearly) == [str(time.year) for time in expected.index]
    assert list(yearly.values()) == pytest.approx(list(expected))
    growth = np.prod([1 + value for value in yearly.values()])
    assert growth == pytest.approx(result.equity[-1] / result.equity[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "fills at the next bar's close, because the data has no opening prices"),
        ({"fill": "same_close"}, "Warning: decisions filled at the very close"),
        ({"whole_shares": True}, "Warning: whole shares on adjusted prices"),
        ({"cost_bps": 2.5}, "2.5 basis points"),
        ({"short": True, "leverage": 2.0}, "2 times the equity; short positions may be taken"),
        ({"leverage": 1.5}, "1.5 times the equity; short positions may not be taken"),
        ({"turbulence_limit": 140.0}, "above 140"),
    ],
)
def test_rules_are_said_in_words(changes: dict[str, object], words: str) -> None:
    panel = Panel(np.zeros(1, "datetime64[ns]"), ("A",), np.ones((1, 1)), np.ones((1, 1), bool))
    said = " ".join(rule_sentences(replace(EnvironmentConfig(), **changes), panel))
    assert words in said
    assert ("Warning" in said) == words.startswith("Warning")


def test_opens_and_true_prices_change_the_words() -> None:
    ones = np.ones((1, 1))
    panel = Panel(np.zeros(1, "datetime64[ns]"), ("A",), ones, ones.astype(bool), open=ones, adjusted=False)
    panel = replace(panel, benchmark=Benchmark("S&P 500", np.ones(1), price_only=True))
    said = " ".join(rule_sentences(EnvironmentConfig(whole_shares=True), panel))
    assert "next bar's open" in said
    assert "S&P 500 by its price alone, without dividends; the stocks' prices leave out theirs" in said
    assert "Shares are bought whole." in said


def test_the_page_loads_nothing_and_shows_every_part(page: str) -> None:
    shown = Page(page)
    assert shown.loads == []
    # The charting library is in the page, once.
    assert page.count("plotly.js v") == 1
    for words in (
        *("The champion is not promoted.", "contains zero", "Known flaws", "picked with hindsight"),
        *("2019-01-02 to 2022-12-28", "5 bars", "10 basis points", "g5p1 comes from g4p3", "torch 2.13.0"),
    ):
        assert words in shown.text
    for chart in ("equity", "drawdown", "weights"):
        assert page.count(f'<div id="{chart}"') == 1


def test_the_table_shows_numbers_in_their_units(page: str) -> None:
    made = document(results())["test"]["strategies"]
    rows = Page(page).rows
    assert rows[0] == [
        *("strategy", "return%", "a year%", "volatility%", "Sharpe", "Sortino", "Calmar", "drawdown%"),
        *("turnover× a year", "costscurrency"),
    ]
    assert [row[0] for row in rows[1:9]] == [name.replace("_", " ") for name in STRATEGIES]
    champion = rows[1]
    assert champion[1] == f"{100 * made['champion']['cumulative_return']:.1f}"
    assert champion[4] == f"{made['champion']['sharpe']:.2f}"
    assert champion[9] == "12,346"
    index = next(row for row in rows if row[0] == "index")
    assert index[5] == "–"


def test_the_leaderboard_marks_members_and_leaves_out_equal_settings(page: str) -> None:
    rows = Page(page).rows
    heads = next(row for row in rows if row[0] == "agent")
    assert heads == ["agent", "parent", "generation", "score", "entropy", "learning rate"]
    assert [row[0] for row in rows if row[0].endswith("(member)")] == [f"g5p{i} (member)" for i in range(4)]


def test_names_cannot_break_the_page() -> None:
    evil = '</script><img src=x onerror="alert(1)">'
    made = results(bars=60, names=("champion", evil))
    made["champion"] = replace(made["champion"], symbols=(*SYMBOLS[:-1], evil))
    whole = document(made)
    whole["data"]["symbols"] = [evil]
    whole["data"]["name"] = evil
    whole["leaderboard"][0]["id"] = evil
    whole["verdict"]["reasons"] = [evil]
    page = render(whole, made)
    assert evil not in page
    assert "<img" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert Page(page).loads == []


def test_equal_runs_give_equal_pages(page: str) -> None:
    made = results()
    assert render(document(made), made) == page


def test_a_plain_backtest_has_a_page_without_champion(tmp_path: Path) -> None:
    made = results(bars=60, names=("index",))
    whole = {**document(made), "champion": None, "verdict": None, "timing": None, "leaderboard": []}
    text = write_report(tmp_path / "new" / "folder", whole, made).read_text()
    assert "<h1>Backtest: sample" in text
    assert "Leaderboard" not in Page(text).text
    assert json.loads((tmp_path / "new" / "folder" / "report.json").read_text())["verdict"] is None
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["report.html", "report.json"]


def test_a_folder_that_cannot_be_written_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    made = results(bars=60, names=("index",))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=r"cannot write .*report.json"):
        write_report(tmp_path / "file", document(made), made)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left"):
        write_json(path, {"a": 1})
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_colours_are_told_apart_and_seen_in_light_and_dark() -> None:
    looks = styles(STRATEGIES)
    assert list(looks) == list(STRATEGIES)
    assert len({look.colour for look in looks.values()}) == len(STRATEGIES)
    assert len({(look.colour, look.dash) for look in styles([f"s{i}" for i in range(10)]).values()}) == 10
    for look in looks.values():
        assert contrast(look.colour, "#ffffff") >= 3.0
        assert contrast(look.colour, "#14171a") >= 3.0


def test_a_strategy_has_one_colour_in_all_charts() -> None:
    made = results(bars=60)
    looks = styles(made)
    for figure in (figures.equity_figure(made), figures.drawdown_figure(made)):
        assert {line.meta: line.line.color for line in figure.data} == {n: look.colour for n, look in looks.items()}
        assert figure.data[-1].meta == "champion"


def test_holdings_add_up_to_the_equity() -> None:
    made = results(bars=60)["champion"]
    stacked = figures.weights_figure(made)
    total = np.sum([np.asarray(band.y) for band in stacked.data], axis=0)
    assert total == pytest.approx(np.ones(60))
    assert len(stacked.data) == figures.ASSETS + 2


def test_short_holdings_are_stacked_below_zero() -> None:
    made = results(bars=60)["champion"]
    weights = made.weights.copy()
    weights[:, 0] = -0.4
    stacked = figures.weights_figure(replace(made, weights=weights))
    below = [band for band in stacked.data if band.stackgroup == "short"]
    assert [band.name for band in below] == ["AAPL"]
    assert np.asarray(below[0].y) == pytest.approx(np.full(60, -0.4))


def test_a_ruined_account_leaves_the_log_axis() -> None:
    made = results(bars=60)
    equity = made["index"].equity.copy()
    equity[30:] = 0.0
    figure = figures.equity_figure({**made, "index": replace(made["index"], equity=equity)})
    line = next(line for line in figure.data if line.meta == "index")
    assert np.isnan(np.asarray(line.y)[30:]).all()
    assert np.isfinite(np.asarray(line.y)[:30]).all()


def test_long_lines_are_thinned_and_keep_their_ends() -> None:
    made = results(bars=60)["champion"]
    bars = 9_001
    times = np.datetime64("2020-01-01T09:30", "ns") + np.arange(bars) * np.timedelta64(1, "m")
    long = replace(made, times=times, equity=np.linspace(1.0, 2.0, bars), weights=np.full((bars, 20), 0.05))
    line = figures.equity_figure({"champion": long}).data[0]
    assert len(line.x) == len(line.y) <= figures.POINTS + 1
    assert (line.x[0], line.x[-1]) == ("2020-01-01T09:30", "2020-01-07T15:30")
    assert line.y[-1] == 2.0


@pytest.mark.parametrize(("low", "high"), [(0.7, 2.4), (0.05, 900.0), (1.0, 1.0), (0.98, 1.03), (0.5, 8.0)])
def test_ticks_of_the_log_axis_are_few_round_and_inside(low: float, high: float) -> None:
    ticks = figures.log_ticks(low, high)
    assert ticks == sorted(ticks)
    assert 1 <= len(ticks) <= 12
    assert all(low <= tick <= high for tick in ticks)


def test_sections_without_a_record_are_absent_and_those_with_one_are_shown() -> None:
    made = results(bars=300)
    whole = document(made)
    plain = Page(render(whole, made)).text
    for title in ("The gate, rule by rule", "Overfitting", "What costs do to it", "The grey band"):
        assert title not in plain
    for title in ("Rolling Sharpe ratio", "Return of each month", "Turnover and costs", "Distribution of returns"):
        assert title in plain
    whole["verdict"] |= {
        "rules": [
            {"name": "deflated_sharpe", "value": 0.41, "limit": 0.95, "passed": False, "sentence": "no"},
            {"name": "<drawdown>", "value": None, "limit": 0.3, "passed": True, "sentence": "yes"},
        ],
        "trials": {"raw": 1234, "clustered": 17},
        "looks": 3,
        "statistics": {
            "overfitting": {"pbo": 0.43, "splits": 12870, "logits": {"counts": [3, 4], "edges": [-1, 0, 1]}}
        },
    }
    whole["test"]["cost_curve"] = [
        {"cost_bps": cost, "annual_return": 0.1 - cost / 1e3, "sharpe": 1.0, "max_drawdown": -0.2, "costs_paid": 5.0}
        for cost in (0.0, 10.0)
    ]
    shown = Page(render(whole, made))
    assert ["deflated sharpe", "0.41", "0.95", "no", "no"] in shown.rows
    assert any(row[:3] == ["<drawdown>", "–", "0.3"] for row in shown.rows)
    for words in ("1,234 raw, 17 clustered", "this one included: 3", "overfitting 43%", "What costs do to it"):
        assert words in shown.text


def test_the_tear_sheet_is_in_the_object_and_short_series_leave_ratios_out() -> None:
    made = results(bars=60, names=("equal_weight", "index"))
    sheet = document(made)["test"]["tearsheet"]
    assert sheet["of"] == "equal_weight"
    assert set(sheet) == {"of", "drawdowns", "longest_drawdown", "monthly", "rolling_sharpe", "distribution", "costs"}
    assert sheet["rolling_sharpe"]["index"]["last"] is None
    assert "Rolling Sharpe" not in Page(render(document(made), made)).text
