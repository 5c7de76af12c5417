"""Rows of the benchmark of markets: resumed studies, and the recorded file against independent formulas."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import pytest
from finrl_pod_app.multi_agent import recipes

from benchmarks.harness.results import run_missing
from benchmarks.many_agents import markets
from benchmarks.many_agents.markets import MarketStudy, market_rows, rows_of
from finrl_pod.errors import ConfigError
from finrl_pod.market.intraday import SCHEDULES

RECORDED = Path(__file__).parents[3] / "benchmarks" / "markets.jsonl"


def small(recipe: recipes.Recipe) -> recipes.Recipe:
    return dataclasses.replace(recipe, envs=16, samples=640)


def test_a_study_continues_where_it_stopped(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    jobs = [markets.job("execution_3", seed, small(recipes.execution()), markets._execution) for seed in (0, 1)]
    run_missing(results, jobs[:1])
    first = results.read_text()
    run_missing(results, jobs)
    assert results.read_text().startswith(first)
    assert len(results.read_text().splitlines()) == 2
    run_missing(results, jobs)
    assert len(results.read_text().splitlines()) == 2
    rows = market_rows(MarketStudy(results=results, table=True))
    assert [row.name for row in rows] == ["execution_3_seed0", "execution_3_seed1"]
    assert rows[0].config["holdings"][0] == 1e6
    assert rows[0].config["holdings"][-1] == 0


def test_competition_and_desk_have_their_measures(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    desk = dataclasses.replace(recipes.desk("ippo"), samples=1280)
    competition = markets.job("competition_2", 0, small(recipes.competition(2)), markets._competition)
    run_missing(results, [competition, markets.job("desk_ippo", 0, desk, markets._desk)])
    rows = {row.name: row for row in market_rows(MarketStudy(results=results, table=True))}
    assert len(rows["competition_2_seed0"].config["best_response_gain"]) == 2
    assert rows["desk_ippo"].config["seeds"] == [rows["desk_ippo"].value]
    assert rows["desk_ippo"].config["equal_slices"] > 1.1


def test_a_file_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no results"):
        market_rows(MarketStudy(results=tmp_path / "none.jsonl", table=True))


def test_the_agent_is_judged_on_later_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    dates: list[tuple[str, ...]] = []
    train, compare = markets.train_execution, markets.compare
    monkeypatch.setattr(markets, "TRAIN_SESSIONS", 20)
    monkeypatch.setattr(markets, "TEST_SESSIONS", 10)
    monkeypatch.setattr(markets, "train_execution", lambda s, *a, **k: (dates.append(s.dates), train(s, *a, **k))[1])
    monkeypatch.setattr(markets, "compare", lambda s, *a: (dates.append(s.dates), compare(s, *a))[1])
    assert set(markets.intraday_study(0, samples=4000)) == {*SCHEDULES, "ppo"}
    assert dates[0][-1] < dates[1][0]
    assert not set(dates[0]) & set(dates[1])


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
