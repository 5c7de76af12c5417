"""Learning curves, scores, lineage and hyperparameter drift, against numpy and the run's own report."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import training as figures
from finrl_pod_app.dashboard.queries import runs, training
from finrl_pod_app.setup import progress_file

from finrl_pod.files import write_json
from finrl_pod.tournament.progress import Progress

pytestmark = pytest.mark.slow

PODS, ROWS, STEP = 5, 4, 32


@pytest.fixture
def values() -> np.ndarray[Any, Any]:
    """[2 generations, ROWS, PODS]."""
    return np.random.default_rng(0).normal(size=(2, ROWS, PODS))


def generations(values: np.ndarray[Any, Any]) -> list[training.Generation]:
    """Pod 1 restarts in the second generation, the others continue; pod 2 has no reward at the last point."""
    found = []
    for g, block in enumerate(values):
        start = [0 if pod == 1 or g == 0 else ROWS * STEP for pod in range(PODS)]
        rows = [
            {
                "samples": [start[pod] + (i + 1) * STEP for pod in range(PODS)],
                "reward": row.tolist(),
                "loss": [None] * 5,
            }
            for i, row in enumerate(block)
        ]
        found.append(training.Generation(list(range(PODS)), rows, []))
    found[-1].rows[-1]["reward"][2] = None
    return found


def test_learning_curve_is_median_and_quantiles_over_pods(values: np.ndarray[Any, Any]) -> None:
    frame = training.learning_curve(generations(values), "reward")
    assert frame["samples"].tolist() == [STEP * (i + 1) for i in range(2 * ROWS)]
    flat = values.reshape(-1, PODS).copy()
    flat[-1, 2] = np.nan
    for name, quantile in (("median", 0.5), ("low", 0.1), ("high", 0.9)):
        np.testing.assert_allclose(frame[name], np.nanquantile(flat, quantile, axis=1), rtol=1e-12)
    assert frame["pods"].tolist() == [5] * 7 + [4]


def test_metric_without_values_has_no_points(values: np.ndarray[Any, Any]) -> None:
    assert training.metric_names(generations(values)) == ["reward", "loss"]
    assert training.learning_curve(generations(values), "loss").empty
    figures.learning_curve(training.learning_curve(generations(values), "loss"), "loss")


def test_learning_curve_of_several_cohorts() -> None:
    """Two slots of a cohort with large iterations, one of a cohort with small ones."""
    rows = [
        {"samples": [64, 64, None], "reward": [1.0, 3.0, None]},
        {"samples": [None, None, 32], "reward": [None, None, 5.0]},
        {"samples": [None, None, 64], "reward": [None, None, 7.0]},
    ]
    frame = training.learning_curve([training.Generation([0, 1, 2], rows, [])], "reward")
    assert frame["samples"].tolist() == [32, 64]
    assert frame["median"].tolist() == [5.0, 3.0]


def agents_of(finished: Path) -> tuple[runs.RunFiles, pd.DataFrame]:
    run = runs.open_run(finished.parent, "mine")
    files = [training.read_generation(file) for file, _ in training.generation_files(run)]
    return run, training.agents_table(run, files)


def test_agents_match_the_report(finished: Path) -> None:
    _, agents = agents_of(finished)
    report = json.loads((finished / "report.json").read_text())
    assert len(agents) == 9
    assert agents["id"].tolist() == [f"g0{g}s0{s}" for g in range(3) for s in range(3)]
    leaderboard = training.leaderboard(agents, 4)
    assert leaderboard["id"].tolist() == [row["id"] for row in report["leaderboard"]]
    assert leaderboard["score"].tolist() == [row["score"] for row in report["leaderboard"]]
    assert leaderboard["rank"].tolist() == [1, 2, 3, 4]
    lineage = report["champion"]["lineage"]
    expected = set(lineage) | {ancestor for line in lineage.values() for ancestor in line}
    assert training.ancestors(agents, report["champion"]["members"]) == expected


def test_hyperparameter_drift(finished: Path) -> None:
    _, agents = agents_of(finished)
    names = training.varied_hyperparameters(agents)
    assert "learning_rate" in names
    frame = training.hyperparameter_drift(agents, "learning_rate")
    for row in frame.itertuples():
        group = agents[agents["generation"] == row.generation]
        assert row.median == pytest.approx(np.median(group["learning_rate"]))
        assert row.best == group.sort_values("score")["learning_rate"].iloc[-1]
        assert row.low <= row.median <= row.high


def test_empty_tables_without_agents() -> None:
    empty = pd.DataFrame(columns=list(training.AGENT_COLUMNS)).astype({"score": float})
    assert training.leaderboard(empty, 5).empty
    assert training.varied_hyperparameters(empty) == []
    assert training.ancestors(empty, ["g00s00"]) == set()


def test_lineage_has_an_edge_per_parent(finished: Path) -> None:
    _, agents = agents_of(finished)
    figure = figures.lineage(agents, ["g02s00"], training.ancestors(agents, ["g02s00"]))
    edges = sum(len(trace.x) // 3 for trace in figure.data[:2])
    assert edges == agents["parent"].notna().sum()
    assert len(figure.data[2].x) == 9
    assert figures.scores(agents).data[1].y[-1] == agents["score"].max()
    figures.hyperparameter_drift(training.hyperparameter_drift(agents, "learning_rate"), "learning_rate")


def test_agent_names_are_escaped() -> None:
    agents = pd.DataFrame(
        {"id": ["<img src=x>"], "parent": [None], "generation": [0], "slot": [0], "samples": [1], "score": [1.0]}
    )
    for figure in (figures.scores(agents), figures.lineage(agents, [], [])):
        assert "<img" not in figure.to_json().replace("\\u003c", "<")


def test_runs_are_overlaid_in_their_styles(values: np.ndarray[Any, Any]) -> None:
    curve = training.learning_curve(generations(values), "reward")
    styles = {name: theme.style_of(name, ["one", "<two>"]) for name in ("one", "<two>")}
    lines = figures.overlaid_curves({"one": curve, "<two>": curve}, "reward", styles).data
    assert [line.name for line in lines] == ["one", "&lt;two&gt;"]
    assert lines[0].line.color != lines[1].line.color
    agents = pd.DataFrame({"generation": [0, 0, 1], "score": [0.5, np.nan, 0.3]})
    best = training.best_scores(agents)
    best, base = figures.overlaid_scores({"one": best}, styles, {"base: <equal>": 0.4}).data
    assert list(best.y) == [0.5, 0.5]
    assert list(best.x) == [1, 2]
    assert (base.name, list(base.x), list(base.y)) == ("base: &lt;equal&gt;", [1, 2], [0.4, 0.4])


def test_other_runs_are_grey_behind_the_ticked_ones(values: np.ndarray[Any, Any]) -> None:
    curve = training.learning_curve(generations(values), "reward")
    names = ["one", "<two>", "three"]
    styles = {name: theme.style_of(name, names) for name in names}
    figure = figures.overlaid_curves(dict.fromkeys(names, curve), "reward", styles)
    lines = figures.grey_out(figure, ["<two>", "three"]).data
    assert [line.name for line in lines] == ["&lt;two&gt;", "three", "one"]
    assert [line.showlegend for line in lines] == [False, False, None]
    assert lines[0].line.color == lines[1].line.color != lines[2].line.color == styles["one"].colour


def test_base_score_is_that_of_the_report_or_of_the_running_training(finished: Path, tmp_path: Path) -> None:
    run = runs.open_run(finished.parent, finished.name)
    agents = training.agents_table(run, [training.read_generation(file) for file, _ in training.generation_files(run)])
    report = runs.report(run)
    score = runs.base_score(run, report)
    assert report.validation is not None
    assert score == report.validation.strategies["mandate_at_tilt_zero"]["sharpe"]
    line = figures.scores(agents, "equal weight", score).data[-1]
    assert line.name == "equal weight"
    assert set(line.y) == {score}
    shutil.copytree(finished, tmp_path / "mine")
    (tmp_path / "mine" / runs.REPORT).unlink()
    stopped = runs.open_run(tmp_path, "mine")
    assert runs.base_score(stopped, runs.report(stopped)) is None
    assert len(figures.scores(agents).data) == 2
    progress = Progress("training", 1, 2, samples_per_second=1.0, best=None, seconds_left=None, base=0.75)
    write_json(tmp_path / "mine" / progress_file.FILE, {"progress": dataclasses.asdict(progress)})
    assert runs.base_score(stopped, runs.report(stopped)) == 0.75
