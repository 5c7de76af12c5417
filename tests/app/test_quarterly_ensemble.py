"""`finrl-pod ensemble`: order of the quarters, choices by validation, accounts beside them, and looks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.setup.presets import config_text
from finrl_pod_app.training.quarterly_ensemble import (
    EnsembleOptions,
    QuarterlyEnsemble,
    RandomChoices,
    algorithm_config,
    quarter_folds,
    run_ensemble,
)

from finrl_pod.data.splits import make_splits
from finrl_pod.errors import ConfigError, InputError, RunError
from finrl_pod.settings.algorithm_configs import A2CConfig, PPOConfig
from tests.app.small_run import isolated_folders, small_config, small_panel

OPTIONS = EnsembleOptions(("ppo", "a2c"), 2, 128)


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with isolated_folders(tmp_path_factory.mktemp("ensemble")) as folder:
        yield folder


@pytest.fixture(scope="module")
def traded(folders: Path) -> QuarterlyEnsemble:
    return run_ensemble(small_config(), folders / "run", OPTIONS, device="cpu")


def test_quarters_follow_validation_and_training_without_overlap() -> None:
    panel = small_panel()
    config = small_config()
    splits = make_splits(panel.times, config.splits)
    folds = quarter_folds(config, panel, None)
    assert len(folds) == (splits.test.last - splits.validation.first + 1) // 63 == 3
    assert folds[0].test.first == splits.validation.first
    for fold in folds:
        assert len(fold.validation) == len(fold.test) == 63
        assert fold.train.last + config.splits.embargo + 1 == fold.validation.first
        assert fold.validation.last + config.splits.embargo + 1 == fold.test.first
    assert folds[1].test.first == folds[0].test.last + 1
    for count in (0, 4):
        with pytest.raises(InputError, match=f"have 3 quarters of 63 bars, got --quarters {count}"):
            quarter_folds(config, panel, count)
    with pytest.raises(InputError, match="daily bars, but main has bars of 1m"):
        quarter_folds(config, dataclasses.replace(panel, bar="1m"), 1)


def test_each_algorithm_keeps_its_settings_and_starts_anew() -> None:
    config = dataclasses.replace(small_config(), cohorts=(A2CConfig(learning_rate=0.5, start="closed_form"),))
    ppo, a2c = (algorithm_config(config, name, 300) for name in ("ppo", "a2c"))
    assert isinstance(ppo.agent, PPOConfig)
    assert (ppo.agent.hidden, ppo.cohorts, ppo.tournament.pods) == ((4, 4), (), 1)
    assert isinstance(a2c.agent, A2CConfig)
    assert (a2c.agent.learning_rate, a2c.agent.start) == (0.5, "new")
    assert ppo.tournament.samples_per_generation == 300


@pytest.mark.slow
def test_the_best_of_validation_trades_the_next_quarter(traded: QuarterlyEnsemble) -> None:
    assert [quarter.quarter for quarter in traded.quarters] == [1, 2]
    for quarter in traded.quarters:
        assert quarter.train_end < quarter.validation_start < quarter.validation_end < quarter.start < quarter.end
        assert quarter.chosen == max(quarter.validation, key=lambda name: quarter.validation[name] or 0.0)
    ratios = {
        name: result["sharpe"] for name, result in traded.results.items() if not isinstance(result, RandomChoices)
    }
    assert ratios.keys() == {"quarterly", "mean", "ppo", "a2c", "mandate_at_tilt_zero"}
    chosen = {quarter.chosen for quarter in traded.quarters}
    if len(chosen) == 1:
        assert ratios["quarterly"] == ratios[chosen.pop()]
    choices = traded.results["random"]
    assert isinstance(choices, RandomChoices)
    assert choices.seeds == 100
    assert min(ratios["ppo"], ratios["a2c"], choices.low) <= choices.median <= choices.high
    assert traded.sharpe_error == 2.0
    assert (traded.look, traded.looks_so_far) == (1, 1)  # the second quarter reaches into the test split


@pytest.mark.slow
def test_a_resumed_ensemble_trains_nothing_again(traded: QuarterlyEnsemble, folders: Path) -> None:
    before = (folders / "run" / "quarter-01" / "ppo" / "state.json").stat().st_mtime_ns
    assert run_ensemble(small_config(), folders / "run", OPTIONS, device="cpu", resume=True) == traded
    assert (folders / "run" / "quarter-01" / "ppo" / "state.json").stat().st_mtime_ns == before
    with pytest.raises(RunError, match="already holds a quarterly ensemble"):
        run_ensemble(small_config(), folders / "run", OPTIONS, device="cpu")
    other_options = dataclasses.replace(OPTIONS, samples=200)
    with pytest.raises(RunError, match=r"the quarterly ensemble in .* was started with other samples"):
        run_ensemble(small_config(), folders / "run", other_options, device="cpu", resume=True)


@pytest.mark.slow
def test_the_command_prints_quarters_and_results(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folders / "small.toml").write_text(config_text(small_config()))
    command = [
        "ensemble",
        str(folders / "small.toml"),
        "--algorithms",
        "ppo, a2c",
        "--quarters",
        "1",
        "--samples",
        "64",
    ]
    assert run([*command, "--out", str(folders / "other"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((folders / "other" / "ensemble.json").read_text())
    assert (document["look"], document["algorithms"]) == (None, ["ppo", "a2c"])
    assert (folders / "other" / "curves.csv").read_text().startswith("time,quarterly,mean,ppo,a2c,")
    assert run([*command, "--out", str(folders / "other"), "--resume"]) == 0
    text = capsys.readouterr().out
    assert "100 random choices: median" in text
    assert "standard error of 2.0" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (EnsembleOptions(("ppo",)), "at least two different names such as ppo,a2c, got ppo"),
        (EnsembleOptions(("ppo", "ppo")), "at least two different names"),
        (EnsembleOptions(("ppo", "a2d")), "there is no algorithm 'a2d'"),
        (EnsembleOptions(("ppo", "a2c"), 0), "--quarters must be at least 1, got 0"),
        (EnsembleOptions(("ppo", "a2c"), 1, 0), "--samples must be at least 1, got 0"),
    ],
)
def test_options_out_of_range_are_refused(options: EnsembleOptions, message: str) -> None:
    with pytest.raises((InputError, ConfigError), match=message):
        options.check()
