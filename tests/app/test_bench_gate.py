"""Gate study: simulated markets, resumable records and exact confidence intervals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_app.bench import gate, main
from finrl_pod_app.bench.edges import BARS, STRENGTHS, edge_panel, information_ratio, planted_momentum
from finrl_pod_app.bench.simulated_markets import REWARD_LAG

from finrl_pod.data.features import compute
from finrl_pod.data.panel import make_panel
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.run import EnvironmentConfig, SplitConfig, TournamentConfig
from finrl_pod.types import Panel

CPU = torch.device("cpu")


def history(bars: int = 1200, assets: int = 6) -> Panel:
    """Random walks with unequal means."""
    rng = np.random.default_rng(4)
    log_returns = rng.normal(np.linspace(-5e-4, 2e-3, assets), 0.012, (bars, assets)) + rng.normal(0, 0.006, (bars, 1))
    days = np.datetime64("2015-01-01", "ns") + np.arange(bars) * np.timedelta64(1, "D")
    return make_panel(days, [f"S{n}" for n in range(assets)], {"close": 50 * np.exp(log_returns.cumsum(0))})


def returns_of(panel: Panel) -> np.ndarray:
    return np.asarray(panel.close[1:] / panel.close[:-1] - 1)


# ---------------------------------------------------------------------- simulated markets


def test_without_an_edge_means_are_equal_and_ranks_do_not_predict() -> None:
    market = edge_panel(history(), 1199, 0.0, seed=1, bars=40_000)
    returns = returns_of(market)
    error = returns.std(0) / np.sqrt(len(returns))
    assert (np.abs(returns.mean(0) - returns.mean()) < 4 * error).all()
    rank = compute(market, ("return_21_rank",))[..., 0]
    correlation = np.corrcoef(rank[BARS:-REWARD_LAG].ravel(), returns[BARS + REWARD_LAG - 1 :].ravel())[0, 1]
    assert abs(correlation) < 4 / np.sqrt(returns.size)


def test_registered_feature_predicts_the_planted_return() -> None:
    plain, planted = (edge_panel(history(), 1199, s, seed=2, bars=600) for s in (0.0, 0.3))
    rank = compute(planted, ("return_21_rank",))[..., 0]
    added = returns_of(planted) - returns_of(plain)  # both draw the same rows
    for t in range(BARS, 600 - REWARD_LAG):
        assert np.argsort(added[t + REWARD_LAG - 1] / returns_of(plain).std(0)).tolist() == np.argsort(rank[t]).tolist()
    assert np.abs(added[: BARS + REWARD_LAG - 1]).max() < 1e-12


def test_planted_edge_leaves_the_market_return_unchanged() -> None:
    base = np.random.default_rng(3).normal(4e-4, 0.01, (400, 5))
    base *= 0.01 / base.std(0)  # with equal volatilities, the rank effects cancel
    planted = planted_momentum(base, 0.5)
    assert np.abs(planted - base).max() > 1e-3
    assert (planted - base).mean(1) == pytest.approx(np.zeros(400), abs=1e-12)


def test_information_ratio_grows_with_the_strength() -> None:
    ratios = [
        information_ratio(edge_panel(history(), 1199, s, seed=5, bars=3000), ExecutionRules())[0]
        for s in (0.0, 0.1, 0.3)
    ]
    assert ratios == sorted(ratios)
    assert ratios[0] < 0.7
    assert ratios[2] > 3


# ---------------------------------------------------------------------- the study


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a study of a few hundred days."""
    config = dataclasses.replace(
        gate.CONFIG,
        threads=1,
        splits=SplitConfig(("1980-01-01", "1981-12-31"), ("1982-01-01", "1982-06-30"), ("1982-07-01", "1982-12-31")),
        features=dataclasses.replace(gate.CONFIG.features, names=("return_1", "return_21_rank")),
        environment=EnvironmentConfig(envs=16, group=4, window=60),
        agent=PPOConfig(horizon=8, minibatches=2, hidden=(4, 4)),
        tournament=TournamentConfig(pods=2, generations=1, samples_per_generation=128, leaderboard=2, champion=1),
    )
    monkeypatch.setattr(gate, "CONFIG", config)
    monkeypatch.setattr(gate, "UNTRAINED_TOURNAMENT", dataclasses.replace(config.tournament, samples_per_generation=1))
    monkeypatch.setattr(gate, "FROZEN_AGENT", dataclasses.replace(config.agent, learning_rate=1e-5, epochs=1))
    monkeypatch.setattr(gate, "load_sample", history)
    monkeypatch.setattr(gate, "BARS", 784)
    monkeypatch.setattr(gate, "history_end", lambda _: 1199)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_study_resumes_and_aggregates_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "gate.jsonl"
    (row,) = gate.gate_rows([2.0], ["ppo"], 1, 7, file, CPU)
    assert (row.name, row.config["worlds"]) == ("gate_ppo_2", 1)
    first = file.read_text()
    assert json.loads(first.splitlines()[0]) == {"config": gate.settings()}
    record = json.loads(first.splitlines()[1])
    assert list(record["rules"]) == ["deflated_sharpe", "overfitting"]  # fails the selection rules
    assert not record["promoted"]
    assert record["trials"]["raw"] == 3  # from a separate registry: two agents and their ensemble
    # A recorded market is not run again; the same seed gives the same record.
    rows = gate.gate_rows([2.0], ["ppo", "untrained"], 1, 7, file, CPU)
    assert [row.name for row in rows] == ["gate_ppo_2", "gate_untrained_2"]
    assert file.read_text().startswith(first)
    assert len(file.read_text().splitlines()) == 3
    repeated = gate.run_market(2.0, "ppo", 7, CPU)
    assert {**repeated, "seconds": 0} == {**record, "seconds": 0}
    assert "edge 2, untrained, seed 7: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_champion_that_passes_selection_is_evaluated_by_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = gate.run_market(2.0, "ppo", 7, CPU)
    lenient = dataclasses.replace(gate.CONFIG.gate, min_dsr=0.0, max_pbo=1.0)
    monkeypatch.setattr(gate, "CONFIG", dataclasses.replace(gate.CONFIG, gate=lenient))
    evaluated = gate.run_market(2.0, "ppo", 7, CPU)
    assert evaluated["rules"].keys() == {
        *("baselines", "deflated_sharpe", "overfitting", "probabilistic_sharpe", "superior_ability"),
        *("excess", "drawdown", "break_even", "audit"),
    }
    assert evaluated["rules"]["audit"]["passed"]
    assert evaluated["sharpe"].keys() == {"validation", "test"}
    # The failed rules have the same values as in the complete evaluation, with as many trials.
    for name, rule in refused["rules"].items():
        assert rule["value"] == evaluated["rules"][name]["value"]
    assert refused["trials"] == evaluated["trials"]


def record_line(**changes: Any) -> str:
    rules = {"audit": {"value": 0, "limit": 0, "passed": True}}
    record = {"edge": 0.0, "learner": "ppo", "seed": 1, "promoted": False, "rules": rules, "seconds": 1.0}
    return json.dumps({**record, **changes}) + "\n"


def header_line(**changes: Any) -> str:
    return json.dumps({"config": {**gate.settings(), **changes}}) + "\n"


def test_shares_have_exact_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gate.jsonl"
    records = "".join(record_line(seed=i, promoted=i < 3) for i in range(100))
    file.write_text(header_line() + records + record_line(edge=2.0, promoted=True))
    assert main(["gate", "--worlds", "0", "--keep", str(file), "--json", "--device", "cpu"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    from scipy import stats

    expected = stats.binomtest(3, 100).proportion_ci(0.95, "exact")
    row = rows["gate_ppo_0"]
    assert (row["value"], row["low"], row["high"]) == pytest.approx((0.03, expected.low, expected.high))
    assert row["config"]["rules"] == {"audit": {"met": 100, "of": 100}}
    assert rows["gate_ppo_2"]["value"] == 1.0


def test_invalid_study_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "gate.jsonl"
    for text, number in (
        (header_line() + record_line() + "{not json\n", 3),
        (header_line() + record_line(learner="sac"), 2),
        (record_line(), 1),
    ):
        file.write_text(text)
        with pytest.raises(RunError, match=f"line {number} is not a valid record"):
            gate.read(file)
    other_gate = {**gate.settings()["gate"], "min_dsr": 0.1}
    file.write_text(header_line(gate=other_gate) + record_line())
    with pytest.raises(RunError, match=r"other thresholds \(gate\.min_dsr\): start a new file"):
        gate.read(file)
    with pytest.raises(ConfigError, match=r"--edge must be one of 0\.0, 0\.5, 1\.0, 2\.0, got 3"):
        gate.gate_rows([3.0], ["ppo"], 1, 0, tmp_path / "x", CPU)
    with pytest.raises(ConfigError, match="--worlds and --first must be 0 or more, got -1"):
        gate.gate_rows([0.0], ["ppo"], -1, 0, tmp_path / "x", CPU)
    with pytest.raises(ConfigError, match="--learner must be one of ppo, untrained"):
        gate.gate_rows([0.0], ["sac"], 1, 0, tmp_path / "x", CPU)


def test_setting_added_later_keeps_a_study_valid(tmp_path: Path) -> None:
    old_settings = gate.settings()
    del old_settings["agent"]["group_baseline"]
    (tmp_path / "gate.jsonl").write_text(json.dumps({"config": old_settings}) + "\n" + record_line())
    assert len(gate.read(tmp_path / "gate.jsonl")) == 1
    assert gate.changed({**old_settings, "removed": 1}, gate.settings()) == "removed"


def test_both_learners_share_their_config() -> None:
    """Both learners use one config for every edge; only the market's prices differ."""
    assert set(STRENGTHS) == {0.0, 0.5, 1.0, 2.0}
    assert gate.config_of("ppo", 3) == dataclasses.replace(gate.CONFIG, seed=3)
    untrained = gate.config_of("untrained", 3)
    assert untrained.gate == gate.CONFIG.gate
    assert untrained.tournament.samples_per_generation == 1
