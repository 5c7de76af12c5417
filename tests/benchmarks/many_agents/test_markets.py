"""Rows of the benchmark of markets: resumed studies, and the recorded file against independent formulas."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import pytest
from finrl_pod_app.multi_agent import recipes

from benchmarks.many_agents import markets
from benchmarks.many_agents.markets import MarketStudy, Training, market_rows, paired_interval, rows_of, run
from finrl_pod.errors import ConfigError, RunError

RECORDED = Path(__file__).parents[3] / "benchmarks" / "markets.jsonl"


def small(recipe: recipes.Recipe) -> recipes.Recipe:
    return dataclasses.replace(recipe, envs=16, samples=640)


def test_a_study_continues_where_it_stopped(tmp_path: Path) -> None:
    study = MarketStudy(run=True, results=tmp_path / "results.jsonl")
    jobs = [Training("execution_3", seed, small(recipes.execution()), markets._execution) for seed in (0, 1)]
    run(jobs[:1], study)
    first = study.results.read_text()
    run(jobs, study)
    assert study.results.read_text().startswith(first)
    assert len(study.results.read_text().splitlines()) == 2
    run(jobs, study)
    assert len(study.results.read_text().splitlines()) == 2
    rows = market_rows(MarketStudy(results=study.results))
    assert [row.name for row in rows] == ["execution_3_seed0", "execution_3_seed1"]
    assert rows[0].config["holdings"][0] == 1e6
    assert rows[0].config["holdings"][-1] == 0


def test_competition_and_desk_have_their_measures(tmp_path: Path) -> None:
    study = MarketStudy(run=True, results=tmp_path / "results.jsonl")
    desk = recipes.desk("ippo")
    run(
        [
            Training("competition_2", 0, small(recipes.competition(2)), markets._competition),
            Training("desk_ippo", 0, dataclasses.replace(desk, samples=1280), markets._desk),
        ],
        study,
    )
    rows = {row.name: row for row in market_rows(study_without_run(study))}
    assert len(rows["competition_2_seed0"].config["best_response_gain"]) == 2
    assert rows["desk_ippo"].config["seeds"] == [rows["desk_ippo"].value]
    assert rows["desk_ippo"].config["equal_slices"] > 1.1


def study_without_run(study: MarketStudy) -> MarketStudy:
    return dataclasses.replace(study, run=False)


def test_nothing_to_read_and_invalid_lines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="add --run"):
        market_rows(MarketStudy(results=tmp_path / "none.jsonl"))
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"name": "execution_3"}\n')
    with pytest.raises(RunError, match="line 1"):
        market_rows(MarketStudy(results=bad))


def test_paired_interval_covers_the_mean() -> None:
    low, high = paired_interval([0.1, 0.2, 0.3])
    assert low < 0.2 < high
    assert paired_interval([0.1, 0.1]) == pytest.approx((0.1, 0.1))


def test_recorded_schedules_are_near_the_closed_form() -> None:
    """The cost of every recorded schedule, in plain Python, over that of Almgren and Chriss's."""
    rows = rows_of([json.loads(line) for line in RECORDED.read_text().splitlines()])
    found = [row for row in rows if row.name.startswith("execution_")]
    assert len(found) == 15
    for row in found:
        c, x = row.config, row.config["holdings"]
        n, tau = len(x) - 1, c["horizon"] / (len(x) - 1)
        eta, risk = c["temporary"] - c["permanent"] * tau / 2, c["risk_aversion"] * c["volatility"] ** 2 * tau
        kappa = math.acosh(risk * tau / (2 * eta) + 1) / tau
        best = [c["order"] * math.sinh(kappa * tau * (n - j)) / math.sinh(kappa * c["horizon"]) for j in range(n + 1)]
        costs = [
            eta / tau * sum((a - b) ** 2 for a, b in itertools.pairwise(h)) + risk * sum(v * v for v in h[1:])
            for h in (x, best)
        ]
        assert costs[0] / costs[1] - 1 == pytest.approx(row.value, rel=0.02)
        assert row.value < 0.01


def test_recorded_equilibria_and_makers_reach_their_targets() -> None:
    rows = {row.name: row for row in rows_of([json.loads(line) for line in RECORDED.read_text().splitlines()])}
    for traders in (2, 5):
        row = rows[f"competition_{traders}_seed0"]
        assert row.value < 0.05
        assert max(row.config["best_response_gain"]) < 0.01
    maker = rows["making_noise_seed0"]
    assert maker.value > max(0.97, maker.config["best_constant"])
    assert maker.config["error"] < 0.1
    assert maker.config["spread_informed"] > maker.config["spread_noise"]


def test_recorded_desks_have_five_seeds_and_a_central_critic_is_not_clearly_worse() -> None:
    rows = {row.name: row for row in rows_of([json.loads(line) for line in RECORDED.read_text().splitlines()])}
    for name in ("mappo", "ippo", "maddpg"):
        row = rows[f"desk_{name}"]
        assert len(row.config["seeds"]) == 5
        assert row.value == pytest.approx(sum(row.config["seeds"]) / 5)
    for name in ("ippo", "maddpg"):
        assert rows[f"desk_{name}"].config["mappo_saves"]["high"] > 0


def test_recorded_schedules_within_a_session_have_intervals() -> None:
    rows = {row.name: row for row in rows_of([json.loads(line) for line in RECORDED.read_text().splitlines()])}
    for name in ("twap", "vwap", "participation", "almgren_chriss", "ppo"):
        row = rows[f"intraday_{name}"]
        assert row.low < row.value < row.high
        assert row.value - rows["intraday_twap"].value == pytest.approx(row.config["difference"])
    assert rows["intraday_ppo"].config["difference_high"] < 0  # cheaper than even slices on sessions it has not seen
