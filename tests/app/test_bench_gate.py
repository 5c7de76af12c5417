"""Gate study: simulated markets, resumable records and exact confidence intervals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_app.bench import gate, gate_calibration, gate_worlds, main
from finrl_pod_app.bench.edges import BARS, edge_panel, information_ratio, planted_momentum
from finrl_pod_app.bench.simulated_markets import REWARD_LAG
from finrl_pod_app.services.presets import preset

from finrl_pod.data.features import compute
from finrl_pod.data.panel import make_panel
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.evaluate.selection_null import null_z_scores
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.run import (
    EnvironmentConfig,
    FeatureConfig,
    MandateConfig,
    RunConfig,
    SplitConfig,
    TournamentConfig,
)
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
    """A study of a few hundred days."""
    config = dataclasses.replace(
        gate_worlds.CONFIGS["unbounded"],
        threads=1,
        splits=SplitConfig(("1980-01-01", "1981-12-31"), ("1982-01-01", "1982-06-30"), ("1982-07-01", "1982-12-31")),
        features=FeatureConfig(("return_1", "return_21_rank")),
        environment=EnvironmentConfig(envs=16, group=4, window=60),
        agent=PPOConfig(horizon=8, minibatches=2, hidden=(4, 4)),
        tournament=TournamentConfig(pods=2, generations=1, samples_per_generation=128, leaderboard=2, champion=1),
    )
    bounded = dataclasses.replace(config, mandate=RunConfig().mandate)
    monkeypatch.setattr(gate_worlds, "CONFIGS", {"default": bounded, "unbounded": config})
    monkeypatch.setattr(gate_worlds, "load_sample", history)
    monkeypatch.setattr(gate_worlds, "BARS", 784)
    monkeypatch.setattr(gate_worlds, "CONTINUATION", 500)
    monkeypatch.setattr(gate_worlds, "history_end", lambda _: 1199)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_study_runs_resumes_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "new" / "gate.jsonl"
    study = gate.GateStudy(
        run=True, kinds=["default"], edges=[1.0], worlds="7", results=kept, calibration=tmp_path / "none"
    )
    (row,) = gate.gate_rows(study, CPU)
    assert (row.name, row.config["worlds"]) == ("power_ir1", 1)
    first = kept.read_text()
    assert json.loads(first.splitlines()[0]) == {"config": gate_worlds.settings()}
    record = json.loads(first.splitlines()[1])
    assert record["seed"] == gate_worlds.FIRST_SEED + 7
    assert record["rules"]["edge"]["value"] == record["edge_test"]["p_value"]
    assert record["trials"]["raw"] == 3  # in the world's registry: two agents and their ensemble
    assert row.config["information_ratio_reached"] == record["information_ratio_reached"]
    # Existing worlds are not run again; the same world gives the same record.
    rows = gate.gate_rows(dataclasses.replace(study, kinds=[], edges=[0.0, 1.0]), CPU)
    names = ["false_promotions_default", "power_ir1", "false_promotions_unbounded", "power_ir1_unbounded"]
    assert [row.name for row in rows] == names
    assert kept.read_text().startswith(first)
    assert len(kept.read_text().splitlines()) == 5
    again = gate_worlds.run_world(gate_worlds.WorldKey("default", 1.0, 7), CPU)
    assert {**again, "seconds": 0} == {**record, "seconds": 0}
    assert "edge 0, unbounded, world 7: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_champion_with_an_edge_is_judged_by_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    key = gate_worlds.WorldKey("unbounded", 2.0, 7)
    refused = gate_worlds.run_world(key, CPU)
    config = gate_worlds.CONFIGS["unbounded"]
    certain = dataclasses.replace(config, gate=dataclasses.replace(config.gate, significance_level=0.5))
    monkeypatch.setattr(gate_worlds, "CONFIGS", {"unbounded": certain})
    judged = gate_worlds.run_world(key, CPU)
    assert judged["edge_test"] == refused["edge_test"]
    expected = {"edge", "drawdown", "break_even", "audit"} if judged["rules"]["edge"]["passed"] else {"edge"}
    assert judged["rules"].keys() == expected


def test_the_world_continues_as_it_began() -> None:
    whole = edge_panel(history(), 1199, 0.3, seed=2, bars=600)
    part = gate_worlds.first_bars(whole, 200)
    assert part.close.tolist() == whole.close[:200].tolist()
    assert part.times[-1] == whole.times[199]


def line(**changes: Any) -> str:
    rules = {"edge": {"value": 0.5, "limit": 0.025, "passed": False}}
    record = {"edge": 0.0, "kind": "default", "world": 1, "promoted": False, "rules": rules, "seconds": 1.0}
    return json.dumps({**record, "information_ratio_reached": None, **changes}) + "\n"


def begun(**changes: Any) -> str:
    return json.dumps({"config": {**gate_worlds.settings(), **changes}}) + "\n"


def test_rows_have_exact_intervals_and_the_ratio_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "gate.jsonl"
    worlds = "".join(line(world=i, promoted=i < 3) for i in range(100))
    edges = line(edge=1.0, promoted=True, information_ratio_reached=0.5) + line(edge=1.0, information_ratio_reached=0.3)
    kept.write_text(begun() + worlds + edges)
    arguments = ["gate", "--results", str(kept), "--calibration", str(tmp_path / "none"), "--json", "--device", "cpu"]
    assert main(arguments) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    from scipy import stats

    expected = stats.binomtest(3, 100).proportion_ci(0.95, "exact")
    none = rows["false_promotions_default"]
    assert (none["value"], none["low"], none["high"]) == pytest.approx((0.03, expected.low, expected.high))
    assert none["config"]["rules"] == {"edge": {"passed": 0, "of": 100}}
    assert rows["power_ir1"]["value"] == 0.5
    assert rows["power_ir1"]["config"]["information_ratio_reached"] == pytest.approx(0.4)


def test_invalid_study_files_and_arguments_are_refused(tmp_path: Path) -> None:
    kept = tmp_path / "gate.jsonl"
    for text, number in ((begun() + line() + "{not json\n", 3), (begun() + line(kind="sac"), 2), (line(), 1)):
        kept.write_text(text)
        with pytest.raises(RunError, match=f"line {number} is not a valid record"):
            gate.read(kept)
    other = gate_worlds.settings()["default"]
    other["gate"]["significance_level"] = 0.1
    kept.write_text(begun(default=other) + line())
    with pytest.raises(RunError, match=r"another config or gate \(default\.gate\.significance_level\)"):
        gate.read(kept)
    nothing = gate.GateStudy(results=tmp_path / "x", calibration=tmp_path / "y")
    for change, words in (
        ({"edges": [3.0]}, r"--edge must be one of 0\.0, 0\.5, 1\.0, 2\.0, got 3"),
        ({"kinds": ["sac"]}, "--kind must be one of default, unbounded, got 'sac'"),
        ({"worlds": "5-2"}, '--worlds must be a range such as 0-199, got "5-2"'),
        ({"worlds": "-1"}, "--worlds must be a range"),
        ({}, "holds no results of the gate"),
    ):
        with pytest.raises(ConfigError, match=words):
            gate.gate_rows(dataclasses.replace(nothing, **change), CPU)
    (tmp_path / "y").write_text("{}")
    with pytest.raises(RunError, match="is not a calibration of the gate"):
        gate.gate_rows(nothing, CPU)


def test_a_setting_added_later_keeps_a_study_valid(tmp_path: Path) -> None:
    then = gate_worlds.settings()
    del then["default"]["agent"]["dropout"]
    (tmp_path / "gate.jsonl").write_text(json.dumps({"config": then}) + "\n" + line())
    assert len(gate.read(tmp_path / "gate.jsonl")) == 1
    assert gate.changed({**then, "gone": 1}, gate_worlds.settings()) == "gone"


def test_kinds_are_the_default_agent_and_one_without_a_mandate() -> None:
    default, unbounded = (gate_worlds.config_of(kind, 3) for kind in ("default", "unbounded"))
    assert default == dataclasses.replace(preset("laptop"), seed=3, splits=unbounded.splits)
    assert unbounded.mandate == MandateConfig(base="none")
    assert default.gate == unbounded.gate == RunConfig().gate


# ---------------------------------------------------------------------- calibration


def test_selection_of_the_calibration_is_that_of_the_gate() -> None:
    """The z-scores of its ensembles without an edge have the distribution that the gate assumes."""
    from scipy import stats

    matrix = gate_calibration.correlation_matrix("families", 0.6, 9)
    assert (matrix[0, 4], matrix[0, 1], matrix[3, 3]) == pytest.approx((0.6, 0.15, 1.0))
    z_scores = np.random.default_rng(0).multivariate_normal(np.zeros(9), matrix, 4000)
    for how in ("best", "greedy"):
        shares = gate_calibration.select(z_scores, matrix, 4, how)
        own = (shares * z_scores).sum(1) / np.sqrt(((shares @ matrix) * shares).sum(1))
        null = null_z_scores(matrix, 4, how, seed=1)
        assert stats.ks_2samp(own, null).pvalue > 0.01


@pytest.mark.parametrize("name", list(gate_calibration.NOISES))
def test_noise_has_unit_variance(name: str) -> None:
    values = gate_calibration.NOISES[name](np.random.default_rng(1), (20_000, 3))
    assert values.shape == (20_000, 3)
    assert values.std() == pytest.approx(1.0, abs=0.1)
    assert abs(values.mean()) < 0.05


def test_kept_calibration_holds_its_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A few cells, made again: about 2.5% promoted without an edge, and more than a test of test alone with one."""
    for name, values in {"STRUCTURES": ("equal",), "CORRELATIONS": (0.6,), "TRIALS": (17,)}.items():
        monkeypatch.setattr(gate_calibration, name, values)
    monkeypatch.setattr(gate_calibration, "stream_cells", list)
    gate_calibration.calibrate(tmp_path / "made.json")
    size, power = gate_calibration.calibration_rows(tmp_path / "made.json")
    assert 0.015 <= size.value <= 0.035
    assert power.low >= -0.05
