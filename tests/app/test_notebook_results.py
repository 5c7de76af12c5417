"""What results of the Python API show in notebooks: figures, tables, frames and texts, from synthetic documents."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.api.results import (
    AuditResult,
    Backtest,
    TournamentResult,
    VerdictResult,
    WalkforwardResult,
)
from finrl_pod_app.report.builder import CURVES_FILE as CURVES
from finrl_pod_app.report.columns import display_name
from finrl_pod_app.report.html import write_report
from finrl_pod_app.report.palette import line_styles
from finrl_pod_app.report.records import make_report

from finrl_pod.errors import InputError, RunError
from finrl_pod.evaluate.metrics import drawdown
from tests.app.report_data import STRATEGIES, synthetic_document, synthetic_results

RESULTS = synthetic_results(bars=300)
RULES = [
    {"name": "edge", "value": 0.2, "limit": 0.05, "passed": False, "sentence": "p-value 0.2; must be at most 0.05"},
    {"name": "drawdown", "value": 0.3, "limit": 0.5, "passed": True, "sentence": "30%; must be at most 50%"},
    {"name": "break_even", "value": None, "limit": 15.0, "passed": True, "sentence": "above every <cost>"},
    {"name": "audit", "value": 0, "limit": 0, "passed": True, "sentence": "The audit found no failures"},
]
FINDINGS = [
    {"check": "leakage", "status": "pass", "part": "splits", "message": "No bar is shared.", "bar": None, "value": 1.0},
    {"check": "data", "status": "warn", "part": "RRC", "message": "RRC falls <67%>.", "bar": "1990-04-10"},
    {"check": "fills", "status": "fail", "part": "fill price", "message": "Wrong.", "bar": None, "value": 0.5},
    {"check": "data", "status": "warn", "part": "prices", "message": "Closes only.", "bar": None, "value": None},
]


@pytest.fixture
def tournament(tmp_path: Path) -> TournamentResult:
    document = synthetic_document(RESULTS) | {"base_score": 1.1}
    write_report(tmp_path, make_report(document), RESULTS)
    return TournamentResult(document, tmp_path)


def backtest_of(name: str, *baselines: str) -> Backtest:
    return Backtest(RESULTS[name], "test", baselines={other: RESULTS[other] for other in baselines})


def lines(figure: Any, axis: str = "y") -> dict[str, Any]:
    """Traces of one axis by their names."""
    return {trace.name: trace for trace in figure.data if (trace.yaxis or "y") == axis}


def test_backtest_draws_growth_and_drawdown_beside_its_baselines() -> None:
    figure = backtest_of("minimum_variance", "equal_weight", "index").plot()
    growth, declines = lines(figure), lines(figure, "y2")
    assert set(growth) == set(declines) == {"minimum variance", "equal weight", "index"}
    assert next(reversed(growth)) == "minimum variance"  # on top of the others
    for name, trace in growth.items():
        result = RESULTS[name.replace(" ", "_")]
        assert trace.line.color == line_styles(["minimum_variance", "equal_weight", "index"])[result.name].colour
        np.testing.assert_allclose(trace.y, result.equity / result.equity[0])
        np.testing.assert_allclose(declines[name].y, drawdown(result.equity))
    assert growth["minimum variance"].line.width > growth["equal weight"].line.width
    assert figure.layout.xaxis.matches == figure.layout.xaxis2.matches == "x3"
    assert figure.layout.yaxis2.tickformatstops[-1].value == ".0%"
    assert figure.layout.title.text == "minimum variance on the test split, 2019-01-02 to 2020-02-25"
    (active,) = lines(figure, "y3").values()  # the difference to the base, on its own scale
    own, base = (RESULTS[name].equity / RESULTS[name].equity[0] for name in ("minimum_variance", "equal_weight"))
    np.testing.assert_allclose(active.y, own / base - 1)
    assert figure.layout.yaxis3.title.text == "growth over equal weight"


def test_backtest_without_baselines_draws_itself_alone() -> None:
    figure = backtest_of("equal_weight").plot()
    assert [list(lines(figure, axis)) for axis in ("y", "y2")] == [["equal weight"]] * 2
    assert not lines(figure, "y3")
    assert not figure.layout.showlegend
    assert figure.data[0].line.dash == "solid"


def test_backtest_is_compared_saved_and_loaded_with_its_baselines(tmp_path: Path) -> None:
    result = backtest_of("minimum_variance", "equal_weight", "index")
    shown = result._repr_html_()
    assert shown.index("<td>minimum variance</td>") < shown.index("<td>equal weight</td>")
    again = Backtest.load(result.save(tmp_path / "one.json"))
    assert list(again.baselines) == ["equal_weight", "index"]
    np.testing.assert_array_equal(again.baselines["index"].equity, RESULTS["index"].equity)
    assert again._repr_html_() == shown


def test_backtest_is_compared_with_its_baselines() -> None:
    tested = backtest_of("champion", "equal_weight")
    found = tested.comparison()
    assert found is not None
    assert found.base == "equal_weight"
    assert f"p-value of no edge {found.p_value:.2g}" in tested._repr_html_()
    with pytest.raises(InputError, match="baseline must be one of equal_weight; got 'index'"):
        tested.comparison("index")
    assert "p-value" not in backtest_of("champion")._repr_html_()


def test_a_baseline_with_the_name_of_the_tested_strategy_does_not_replace_it() -> None:
    other = dataclasses.replace(RESULTS["index"], name="equal_weight")
    result = Backtest(RESULTS["equal_weight"], "all", baselines={"equal_weight": other})
    np.testing.assert_allclose(result.plot().data[0].y[-1], RESULTS["equal_weight"].equity[-1] / 1e6, rtol=0.05)
    assert result._repr_html_().count("<td>equal weight</td>") == 1


def test_tournament_draws_test_equity_and_its_drawdown(tournament: TournamentResult) -> None:
    figure = tournament.plot()
    growth = lines(figure)
    assert set(growth) == set(lines(figure, "y2")) == {display_name(name) for name in STRATEGIES}
    assert {name for name, trace in growth.items() if trace.visible is True} == {
        "champion", "index", "equal weight", "equal weight buy and hold",
    }  # fmt: skip
    assert {name for name, trace in growth.items() if trace.line.color == "#d55e00"} == {"champion"}
    champion = RESULTS["champion"].equity
    np.testing.assert_allclose(growth["champion"].y, champion / champion[0])
    assert [trace.visible for trace in lines(figure, "y3").values()] == [True]


def test_tournament_draws_its_scores_by_generation(tournament: TournamentResult) -> None:
    figure = tournament.plot(scores=True)
    scores = lines(figure)
    # Four agents of each of generations 3 to 6, the best last.
    assert list(scores["best"].x) == [3, 4, 5, 6]
    np.testing.assert_allclose(scores["best"].y, [0.95, 1.07, 1.19, 1.31])
    np.testing.assert_allclose(scores["median"].y, [0.905, 1.025, 1.145, 1.265])
    assert list(scores["equal weight"].y) == [1.1, 1.1]
    assert len(scores["agent"].y) == 16
    assert figure.layout.xaxis.title.text == "generation"


def test_tournament_scores_are_those_of_all_agents_of_its_folder(tournament: TournamentResult) -> None:
    assert tournament.folder is not None
    metrics = tournament.folder / "metrics"
    metrics.mkdir()
    row = {name: value for name, value in tournament.document["leaderboard"][0].items() if name != "assignment"}
    agents = [{**row, "id": name, "generation": 2, "score": score} for name, score in (("a", 0.1), ("b", None))]
    (metrics / "0002.json").write_text(json.dumps({"slots": [], "rows": [], "agents": agents}))
    scores = lines(tournament.plot(scores=True))
    assert len(scores["agent"].y) == 17
    np.testing.assert_allclose(scores["median"].y[0], 0.89)  # of 0.1, 0.86, 0.89, 0.92, 0.95


def test_tournament_without_curves_draws_its_leaderboard_alone(tournament: TournamentResult, tmp_path: Path) -> None:
    again = TournamentResult(tournament.document)
    assert set(lines(again.plot())) == {"agent", "best", "median", "equal weight"}
    assert "leaderboard" in again.plot().layout.title.text
    (tmp_path / CURVES).write_bytes(b"damaged")
    with pytest.raises(RunError, match="is damaged"):
        tournament.plot()
    (tmp_path / CURVES).unlink()
    assert set(lines(tournament.plot())) == set(lines(again.plot()))


def test_tournament_states_its_champion_outcome_and_figures(tournament: TournamentResult) -> None:
    sharpe = [f"{RESULTS[name].metrics['sharpe']:.2f}" for name in ("champion", "index")]
    short = f"TournamentResult(ensemble of 4 agents, not promoted, test Sharpe ratio {sharpe[0]}; index {sharpe[1]}"
    assert repr(tournament) == f"{short}, folder={str(tournament.folder)!r})"
    assert repr(TournamentResult(tournament.document)) == f"{short})"
    text = str(tournament).splitlines()
    assert text[0] == f"Tournament in {tournament.folder}: champion ensemble of 4 agents (ppo)"
    assert text[1] == "On the test split, 2019-01-02 to 2022-12-28:"
    assert f"- Sharpe ratio: {sharpe[0]}; index {sharpe[1]}" in text
    assert any(line.startswith("Not promoted.") for line in text)
    assert text[-2] == f"Report: {tournament.folder}/report.html"
    assert text[-1].startswith("Next: compare other settings on validation, with fp.run_tournament(..., test=False). A")


def test_tournament_frame_begins_with_the_champion_and_the_usual_metrics(tournament: TournamentResult) -> None:
    frame = tournament.to_frame()
    assert (frame.index[0], frame.index.name) == ("champion", "strategy")
    assert list(frame.columns[:4]) == ["cumulative_return", "annual_return", "annual_volatility", "sharpe"]
    assert set(map(str, frame.dtypes)) == {"float64"}
    assert np.isnan(frame.loc["index", "sortino"])


def test_tournament_without_a_market_has_a_mean_return_and_no_verdict() -> None:
    board = [{"id": "g01s00", "generation": 1, "score": 3.0}, {"id": "g00s01", "generation": 0, "score": 2.0}]
    result = TournamentResult(
        {
            "environment": "drift.py:Drift",
            "champion": {"id": "g01s00", "algorithm": "ppo"},
            "test": {"episodes": 64, "mean_return": 2.5, "std_return": 1.0, "standard_error": 0.1},
            "leaderboard": board,
        }
    )
    assert repr(result) == "TournamentResult(g01s00, mean return 2.5 over 64 test episodes)"
    assert str(result).endswith("On test: mean return 2.5 over 64 test episodes")
    assert "mean return 2.5" in result._repr_html_()
    assert result.to_frame().loc["champion", "mean_return"] == 2.5
    assert list(lines(result.plot())["best"].x) == [1, 2]
    with pytest.raises(InputError, match="has no verdict"):
        _ = result.promoted


def test_audit_is_a_table_of_findings_with_failures_first() -> None:
    audit = AuditResult({"subject": "equal_weight", "clean": False, "findings": FINDINGS})
    frame = audit.to_frame()
    assert list(frame["status"]) == ["fail", "warn", "warn", "pass"]
    assert "RRC falls &lt;67%&gt;." in audit._repr_html_()
    assert list(frame.columns) == ["status", "bar", "value", "message"]
    assert frame.index.names == ["check", "part"]
    assert list(frame.loc["data", "message"]) == ["RRC falls <67%>.", "Closes only."]
    assert audit._repr_html_().index("fill price") < audit._repr_html_().index("RRC")
    assert str(audit).splitlines()[1:] == [
        "fail: Wrong.",
        "warn: RRC falls <67%>.",
        "warn: Closes only.",
        "Checked: leakage, data, fills.",
    ]


def test_verdict_is_a_table_of_all_rules() -> None:
    verdict = VerdictResult({"promoted": False, "rules": RULES, "reasons": ["edge"]})
    frame = verdict.to_frame()
    assert (list(frame.index), frame.index.name) == (["edge", "drawdown", "break_even", "audit"], "rule")
    assert list(frame.columns) == ["value", "limit", "passed", "sentence"]
    pd.testing.assert_series_equal(frame["value"], pd.Series([0.2, 0.3, np.nan, 0.0], frame.index, name="value"))
    assert frame["passed"].sum() == 3
    shown = verdict._repr_html_()
    assert "<td>break even</td><td>∞</td><td>15 bp</td><td>pass</td><td>above every &lt;cost&gt;</td>" in shown


def test_walkforward_draws_each_seed_their_mean_and_equal_weight() -> None:
    runs = [{"fold": fold, "seed": seed, "sharpe": fold + seed / 10} for fold in (1, 2) for seed in (1, 3)]
    folds = [
        {"fold": 1, "equal_weight_sharpe": 0.7, "test": ["2019-01-02", "2019-12-31"]},
        {"fold": 2, "equal_weight_sharpe": None, "test": ["2020-01-02", "2020-12-31"]},
    ]
    document = {"runs": runs, "folds": folds, "verdict": {"promoted": True}}
    figure = WalkforwardResult(copy.deepcopy(document)).plot()
    drawn = lines(figure)
    assert figure.layout.xaxis.ticktext[1] == "2<br>2020-01-02<br>to 2020-12-31"
    assert list(drawn["seed"].text) == ["seed 1", "seed 3", "seed 1", "seed 3"]
    np.testing.assert_allclose(drawn["mean of the seeds"].y, [1.2, 2.2])
    np.testing.assert_array_equal(np.asarray(drawn["equal weight"].y, dtype=float), [0.7, np.nan])
    assert drawn["equal weight"].line.color == line_styles(["equal_weight"])["equal_weight"].colour
