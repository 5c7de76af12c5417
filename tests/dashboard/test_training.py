"""Curves, scores, descent and drift, against plain numpy and what the run itself says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.dashboard.figures import training as figures
from finrl_pod_app.dashboard.queries import runs, training

PODS, ROWS, STEP = 5, 4, 32


@pytest.fixture
def values() -> np.ndarray[Any, Any]:
    """[2 generations, ROWS, PODS]."""
    return np.random.default_rng(0).normal(size=(2, ROWS, PODS))


def generations(values: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """Pod 1 begins its second generation anew, the others go on; pod 2 has no number at the last point."""
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
        found.append({"slots": list(range(PODS)), "rows": rows})
    found[-1]["rows"][-1]["reward"][2] = None
    return found


def test_a_curve_is_the_median_and_the_quantiles_over_the_pods(values: np.ndarray[Any, Any]) -> None:
    frame = training.curve(generations(values), "reward")
    assert frame["samples"].tolist() == [STEP * (i + 1) for i in range(2 * ROWS)]
    flat = values.reshape(-1, PODS).copy()
    flat[-1, 2] = np.nan
    for name, quantile in (("middle", 0.5), ("low", 0.1), ("high", 0.9)):
        np.testing.assert_allclose(frame[name], np.nanquantile(flat, quantile, axis=1), rtol=1e-12)
    assert frame["pods"].tolist() == [5] * 7 + [4]


def test_a_quantity_without_numbers_has_no_points(values: np.ndarray[Any, Any]) -> None:
    assert training.curve_names(generations(values)) == ["reward", "loss"]
    assert training.curve(generations(values), "loss").empty
    figures.learning_curve(training.curve(generations(values), "loss"), "loss")


def test_cohorts_stand_side_by_side() -> None:
    """The first two slots in one cohort of large steps, the third in another of small ones."""
    rows = [
        {"samples": [64, 64, None], "reward": [1.0, 3.0, None]},
        {"samples": [None, None, 32], "reward": [None, None, 5.0]},
        {"samples": [None, None, 64], "reward": [None, None, 7.0]},
    ]
    frame = training.curve([{"slots": [0, 1, 2], "rows": rows}], "reward")
    assert frame["samples"].tolist() == [32, 64]
    assert frame["middle"].tolist() == [5.0, 3.0]


def known_of(finished: Path) -> tuple[runs.RunFiles, pd.DataFrame]:
    run = runs.open_run(finished.parent, "mine")
    files = [training.read_generation(file) for file, _ in training.generation_files(run)]
    return run, training.agents(run, files)


def test_the_agents_of_a_run_are_those_of_its_report(finished: Path) -> None:
    _, known = known_of(finished)
    report = json.loads((finished / "report.json").read_text())
    assert len(known) == 9
    assert known["id"].tolist() == [f"g0{g}s0{s}" for g in range(3) for s in range(3)]
    board = training.board(known, 4)
    assert board["id"].tolist() == [row["id"] for row in report["leaderboard"]]
    assert board["score"].tolist() == [row["score"] for row in report["leaderboard"]]
    assert board["rank"].tolist() == [1, 2, 3, 4]
    lineage = report["champion"]["lineage"]
    expected = set(lineage) | {ancestor for line in lineage.values() for ancestor in line}
    assert training.ancestors(known, report["champion"]["members"]) == expected


def test_a_run_of_an_older_version_shows_what_it_kept(finished: Path) -> None:
    run = runs.open_run(finished.parent, "mine")
    files = [training.read_generation(file) for file, _ in training.generation_files(run)]
    old = [{name: value for name, value in one.items() if name != "agents"} for one in files]
    known = training.agents(run, old)
    state = json.loads((finished / "state.json").read_text())
    assert set(known["id"]) == {row["id"] for row in (*state["leaderboard"], *state["current"])}


def test_settings_that_differ_drift(finished: Path) -> None:
    _, known = known_of(finished)
    names = training.settings_of(known)
    assert "learning_rate" in names
    frame = training.drift(known, "learning_rate")
    for row in frame.itertuples():
        group = known[known["generation"] == row.generation]
        assert row.middle == pytest.approx(np.median(group["learning_rate"]))
        assert row.best == group.sort_values("score")["learning_rate"].iloc[-1]
        assert row.low <= row.middle <= row.high


def test_no_agents_make_empty_tables() -> None:
    none = pd.DataFrame(columns=list(training.AGENT_COLUMNS)).astype({"score": float})
    assert training.board(none, 5).empty
    assert training.settings_of(none) == []
    assert training.ancestors(none, ["g00s00"]) == set()


def test_the_tree_of_descent_has_a_line_for_each_parent(finished: Path) -> None:
    _, known = known_of(finished)
    figure = figures.lineage(known, ["g02s00"], training.ancestors(known, ["g02s00"]))
    edges = sum(len(trace.x) // 3 for trace in figure.data[:2])
    assert edges == known["parent"].notna().sum()
    assert len(figure.data[2].x) == 9
    assert figures.scores(known).data[1].y[-1] == known["score"].max()
    figures.drift(training.drift(known, "learning_rate"), "learning_rate")


def test_names_of_agents_are_escaped() -> None:
    known = pd.DataFrame(
        {"id": ["<img src=x>"], "parent": [None], "generation": [0], "slot": [0], "samples": [1], "score": [1.0]}
    )
    for figure in (figures.scores(known), figures.lineage(known, [], [])):
        assert "<img" not in figure.to_json().replace("\\u003c", "<")
