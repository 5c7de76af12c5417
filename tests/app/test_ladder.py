"""The ladder of a run, the solved policy that training starts from, and which of the two is deployed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_app.cli.main import run as cli
from finrl_pod_app.evaluation.audit import audit_run
from finrl_pod_app.report.mandate_text import ladder_cells, ladder_sentence
from finrl_pod_app.report.records import make_report
from finrl_pod_app.training.start_policy import SHARES, _starts_outside, score_updates

from finrl_pod.data.splits import Span, Splits
from finrl_pod.errors import ConfigError
from finrl_pod.settings.algorithm_configs import ClosedFormConfig, PPOConfig
from finrl_pod.settings.run import MandateConfig, RunConfig
from finrl_pod.tournament.run_directory import START, RunDirectory
from finrl_pod.tournament.selection import champion_of, ensemble_of
from tests.app.small_run import isolated_folders, run_tournament, small_config
from tests.markets import random_market

RUNGS = ["base", "momentum", "reversal", "low_volatility", "closed_form", "rl"]
pytestmark = pytest.mark.slow

STATISTICS = {"active_return", "alpha", "tracking_error", "sharpe_difference", "turnover"}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with isolated_folders(tmp_path_factory.mktemp("ladder")) as path:
        yield path


def started(**tournament: Any) -> RunConfig:
    """A small tournament of linear PPO from the solved policy."""
    config = small_config(**{"pods": 2, "generations": 2, **tournament})
    agent = dataclasses.replace(config.agent, policy="linear", start="closed_form", weight_decay=1.0)
    assert isinstance(agent, PPOConfig)
    return dataclasses.replace(config, agent=agent, mandate=MandateConfig())


def test_a_training_split_shorter_than_five_horizons_is_not_scored_in_folds() -> None:
    market = random_market(bars=220)
    times = np.datetime64("2024-01-01") + np.arange(220)
    splits = Splits(Span(0, 159), Span(165, 190), Span(195, 219), 5, times)
    agent = PPOConfig(horizon=32)
    fold = score_updates(RunConfig(agent=agent), agent, market, splits, tilts=None)  # type: ignore[arg-type]
    assert (fold.shares, fold.ratios, fold.chosen) == ((), (), SHARES[0])


def solved() -> RunConfig:
    return dataclasses.replace(started(), agent=ClosedFormConfig())


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, Any]:
    return run_tournament(started(), folder / "trained", device="cpu")


def test_every_step_is_measured_over_the_base(trained: dict[str, Any], folder: Path) -> None:
    rows = {row["rung"]: row for row in trained["ladder"]}
    assert list(rows) == RUNGS
    assert all(set(row[period]) == STATISTICS for row in rows.values() for period in ("validation", "test"))
    for name in ("active_return", "alpha", "tracking_error", "sharpe_difference"):
        assert rows["base"]["test"][name] == pytest.approx(0, abs=1e-12)
        assert all(math.isfinite(row["test"][name]) for row in rows.values())
    (deployed,) = [row for row in rows.values() if row["deployed"]]
    champion = trained["test"]["strategies"]["champion"]
    base = trained["test"]["strategies"]["mandate_at_tilt_zero"]
    assert deployed["test"]["sharpe_difference"] == pytest.approx(champion["sharpe"] - base["sharpe"], abs=1e-6)
    assert deployed["test"]["turnover"] == pytest.approx(champion["turnover"])
    assert len(ladder_cells(make_report(trained))) == len(RUNGS)
    assert "Deployed: " in ladder_sentence(make_report(trained))
    assert "Steps from the base" in (folder / "trained" / "report.html").read_text()


def test_baselines_trade_under_the_mandate_of_the_champion(trained: dict[str, Any], folder: Path) -> None:
    rows = {row["name"]: row for row in trained["mandate_baselines"]}
    assert rows.keys() == {"momentum", "reversal", "low_volatility", "ridge"}
    ranked = [row["validation_sharpe"] for row in trained["mandate_baselines"]]
    assert ranked == sorted(ranked, reverse=True)
    base = trained["test"]["strategies"]["mandate_at_tilt_zero"]["sharpe"]
    for rung in trained["ladder"][1:4]:  # the same accounts
        assert rows[rung["rung"]]["test_sharpe"] - base == pytest.approx(rung["test"]["sharpe_difference"], abs=1e-12)
    assert rows["ridge"]["test_sharpe"] != pytest.approx(base, abs=1e-6)
    page = (folder / "trained" / "report.html").read_text()
    assert "Baselines under the mandate" in page
    assert "ridge regression" in page


def test_baselines_without_a_test_are_ranked_on_validation(trained: dict[str, Any], folder: Path) -> None:
    untested = run_tournament(solved(), folder / "untested", device="cpu", test=False)["mandate_baselines"]
    assert [row["test_sharpe"] for row in untested] == [None] * 4
    names = ("name", "validation_sharpe")
    assert [[row[name] for name in names] for row in untested] == [
        [row[name] for name in names] for row in trained["mandate_baselines"]
    ]


def test_training_without_a_shown_gain_deploys_its_start(trained: dict[str, Any], folder: Path) -> None:
    run = RunDirectory.open(folder / "trained")
    assert trained["start"]["p_value"] > 0.025
    assert champion_of(run, run.config).ids == (START,)
    assert trained["champion"]["members"] == [START]
    assert ensemble_of(run, run.config).ids != (START,)
    assert run.samples_per_generation(run.config)[0] == math.ceil(128 * trained["start"]["folds"][0]["chosen"])
    assert {finding.status for finding in audit_run(folder / "trained").findings} <= {"pass", "warn"}
    assert cli(["promote", str(folder / "trained"), "--json"]) == 1


def test_a_resumed_run_keeps_the_start_and_the_budget(trained: dict[str, Any], folder: Path) -> None:
    run = RunDirectory.open(folder / "trained")
    before = run.start_folds()
    resumed = run_tournament(run.config, folder / "trained", device="cpu", resume=True, test=False)
    assert run.start_folds() == before
    assert resumed["champion"]["roots"] == trained["champion"]["roots"]


def test_a_solved_agent_is_a_tournament_of_one(folder: Path) -> None:
    notes: list[str] = []
    document = run_tournament(solved(), folder / "solved", device="cpu", on_note=notes.append)
    assert [row["rung"] for row in document["ladder"]] == RUNGS[:-1]
    assert document["ladder"][-1]["deployed"] is True
    assert document["start"] is None
    assert len(document["leaderboard"]) == 1
    unused = ("pods", "generations", "samples_per_generation", "champion")
    assert all(f"tournament.{name}" in notes[0] for name in unused)
    weights = RunDirectory.open(folder / "solved").snapshot("g00s00").weights["linear_w"]
    start = RunDirectory.open(folder / "trained").snapshot(START).weights["linear_w"]
    assert torch.equal(weights, start)
    resumed = run_tournament(solved(), folder / "solved", device="cpu", resume=True)
    assert resumed["ladder"] == document["ladder"]


@pytest.mark.parametrize(
    "changes",
    [
        {"cohorts": (PPOConfig(),)},
        {"agent": PPOConfig(), "cohorts": (ClosedFormConfig(),)},
        {"mandate": MandateConfig(base="none")},
    ],
)
def test_settings_without_a_use_are_refused(changes: dict[str, Any], folder: Path) -> None:
    with pytest.raises(ConfigError, match="closed_form"):
        run_tournament(dataclasses.replace(solved(), **changes), folder / "refused", device="cpu")
    assert not (folder / "refused").exists()


def test_episodes_of_a_fold_avoid_its_block() -> None:
    starts = _starts_outside(10, 200, (80, 120), window=20, embargo=5)
    assert starts.tolist() == [*range(10, 54), *range(125, 182)]
    assert len(_starts_outside(0, 50, (10, 40), window=20, embargo=5)) == 0


def test_a_shown_gain_deploys_the_ensemble(trained: dict[str, Any], folder: Path) -> None:
    """Returns over the start that vary little, written in place of those of every agent."""
    run = RunDirectory.open(folder / "trained")
    start = run.start_returns()
    assert start is not None
    rng = np.random.default_rng(0)
    for generation in range(2):
        own = run.validation_returns([generation])
        gains = {name: start + rng.normal(1e-3, 1e-3, len(start)) for name in own if name != "base"}
        run.save_validation(generation, gains)
    assert champion_of(run, run.config) == ensemble_of(run, run.config)


def test_agents_without_a_linear_part_train_from_new_weights(folder: Path) -> None:
    config = dataclasses.replace(started(), agent=dataclasses.replace(started().agent, policy="mlp"))
    notes: list[str] = []
    document = run_tournament(config, folder / "mlp", device="cpu", on_note=notes.append, test=False)
    assert "agent.start" in notes[0]
    assert document["champion"]["members"] != [START]
    assert not RunDirectory.open(folder / "mlp").has_start
