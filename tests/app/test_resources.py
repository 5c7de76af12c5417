"""Overrides of tournaments, estimates of memory and time, and configs that fit a panel."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.setup.overrides import override_run
from finrl_pod_app.setup.presets import fitting_features, preset
from finrl_pod_app.training import resources
from finrl_pod_app.training.resources import check_memory, estimate_run
from torch import device

from finrl_pod.data import features
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError, InputError
from finrl_pod.settings.algorithm_configs import A2CConfig, AgentConfig, DDPGConfig, SACConfig
from finrl_pod.settings.run import EnvironmentConfig, FeatureConfig, RunConfig, TournamentConfig
from tests.data.panels import random_panel

PANEL = random_panel()
SAMPLE = Store().show("sample")


def test_estimates_grow_with_what_is_held() -> None:
    base = estimate_run(preset("quick"), SAMPLE)
    assert base.samples == 4 * 2 * 5_000
    assert 3e8 < base.memory_bytes < 3e9
    wide = dataclasses.replace(SAMPLE, bars=10 * SAMPLE.bars)
    assert estimate_run(preset("quick"), wide).parts["prices"] == pytest.approx(10 * base.parts["prices"])
    replay = RunConfig(agent=SACConfig(buffer_size=1_000_000))
    stored = 8 * 1_000_000 * 2 * 4 * len(SAMPLE.symbols)  # 8 pods, two accounts of N float32 at least
    assert estimate_run(replay, SAMPLE).parts["environments and learners"] > stored


@pytest.mark.parametrize(
    ("agent", "envs", "seconds"),  # CPU time measured on one core for 2,000 samples
    [
        (A2CConfig(horizon=5, hidden=(64, 64), policy="mlp"), 1, 1.3),
        (A2CConfig(horizon=5, hidden=(64, 64), policy="mlp"), 4, 0.4),
        (DDPGConfig(gradient_steps=1, batch_size=128, hidden=(400, 300), policy="mlp"), 1, 14.8),
        (DDPGConfig(batch_size=128, hidden=(400, 300), policy="mlp"), 16, 2.3),
    ],
)
def test_time_counts_the_calls_of_few_environments(agent: AgentConfig, envs: int, seconds: float) -> None:
    tournament = TournamentConfig(pods=1, generations=1, samples_per_generation=2_000, leaderboard=1, champion=1)
    environment = EnvironmentConfig(kind="stock_trading", envs=envs, group=1)
    names = FeatureConfig(tuple(f"close_{n}_sma" for n in (30, 60)) * 4)
    config = RunConfig(agent=agent, environment=environment, tournament=tournament, features=names)
    none = dataclasses.replace(config, tournament=dataclasses.replace(tournament, samples_per_generation=1))
    panel = dataclasses.replace(SAMPLE, symbols=SAMPLE.symbols[:8])
    estimated = estimate_run(config, panel).seconds - estimate_run(none, panel).seconds
    assert seconds / 2 < estimated < 2 * seconds


def test_mapped_tables_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    base = estimate_run(preset("quick"), SAMPLE)
    assert base.mapped_bytes == 0
    monkeypatch.setenv("FINRL_POD_MAPPED_MIB", "0")
    mapped = estimate_run(preset("quick"), SAMPLE)
    assert mapped.mapped_bytes + mapped.parts["market"] == base.parts["market"]
    assert mapped.parts["market"] == 8 * SAMPLE.bars * len(SAMPLE.symbols)  # masks


def test_more_memory_than_is_free_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_memory(preset("quick"), SAMPLE, device("cpu"))
    monkeypatch.setattr(resources, "available_bytes", lambda _: 10**8)
    with pytest.raises(ConfigError, match=r"needs about .* GB of memory and 0\.1 GB are free; most of it is for"):
        check_memory(preset("quick"), SAMPLE, device("cpu"))


def test_overrides_of_a_tournament() -> None:
    config = override_run(preset("quick"), settings=("tournament.pods=3", "seed=7", "cost_bps=2", "agent.horizon=5"))
    assert (config.tournament.pods, config.seed, config.environment.cost_bps) == (3, 7, 2)
    assert config.agent.horizon == 5  # type: ignore[attr-defined]
    assert config.cohorts == preset("quick").cohorts
    assert override_run(config, settings=("agent.algorithm=sac",)).agent.algorithm == "sac"
    assert override_run(config, cost_bps=1.5).environment.cost_bps == 1.5
    with pytest.raises(ConfigError, match=r"unknown key tournament\.podz; did you mean pods\?"):
        override_run(config, settings=("tournament.podz=3",))
    with pytest.raises(ConfigError, match="there is no section 'tournaments'; did you mean tournament"):
        override_run(config, settings=("tournaments.pods=3",))
    with pytest.raises(
        ConfigError, match=r"it is a section; name one of its settings, such as gate\.significance_level="
    ):
        override_run(config, settings=("gate=3",))
    with pytest.raises(InputError, match="--set takes name=value"):
        override_run(config, settings=("tournament.pods",))


def test_features_fit_the_panel() -> None:
    short = dataclasses.replace(SAMPLE, bars=700)
    names = ("momentum_252_21", "return_5", "residual_momentum", "trend_200", "volatility_63", "own.py:mine_500")
    assert fitting_features(names, short) == ("return_5", "volatility_63", "own.py:mine_500")
    assert fitting_features(names, SAMPLE) == names
    assert fitting_features(("return_252",), dataclasses.replace(SAMPLE, bars=60)) == ("return_1", "return_5")


@pytest.mark.slow
def test_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, out = str(tmp_path / "mine.toml"), tmp_path / "run"
    assert run(["init", "--preset", "quick", config, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == config
    assert run(["tournament", config, "--dry-run", "--json", "--out", str(out)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["memory_bytes"] == sum(plan["memory"].values())
    assert run(["tournament", config, "--dry-run", "--out", str(out)]) == 0
    written = capsys.readouterr().out
    assert "memory: about" in written
    assert f"a new champion would be look {plan['look']} at bars that overlap it" in written
    assert run(["tournament", config, "--dry-run", "--no-test", "--out", str(out)]) == 0
    assert f"left unseen (--no-test); testing it would be look {plan['look']}" in capsys.readouterr().out
    assert run(["tournament", config, "--set", "tournament.pods=10000000", "--out", str(out)]) == 2
    assert "GB of memory" in capsys.readouterr().err
    assert run(["tournament", config, "--set", "tournament.pods=0", "--dry-run"]) == 2
    assert "tournament.pods is out of its range" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_dry_run_warns_of_a_short_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(tmp_path / "mine.toml")
    assert run(["init", "--preset", "quick", config, "--json"]) == 0
    assert capsys.readouterr().err == ""
    arguments = ["tournament", config, "--dry-run", "--set"]
    assert run([*arguments, 'splits.test=["2022-10-03","2022-12-28"]']) == 0
    assert re.search(r"^note: the test has only \d+ bars \(0\.2\d years\)", capsys.readouterr().err, re.MULTILINE)
    assert run([*arguments, 'splits.test=["2022-10-03","2022-12-28"]', "--json"]) == 0
    assert "the test has only" in json.loads(capsys.readouterr().out)["notes"][0]
    assert run([*arguments, "seed=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('splits.test=["2030-01-02","2031-01-02"]', "outside the data"),
        ('splits.test=["02.01.2019","2022-12-28"]', "must be a date"),
        ('data.symbols=["AAPL","XYZ"]', "no ticker XYZ"),
        ('features.names=["momentum_252"]', "momentum_252"),
    ],
)
def test_dry_run_checks_the_config_on_its_prices(
    setting: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(tmp_path / "mine.toml")
    assert run(["init", "--preset", "quick", config]) == 0
    assert run(["tournament", config, "--set", setting, "--dry-run"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_home_that_cannot_be_written_is_refused_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "file" / "home"))
    assert run(["demo", "--quick", "--out", str(tmp_path / "run")]) == 2
    assert "cannot use the registry of trials" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_trillion_pods_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--preset", "quick", str(tmp_path / "mine.toml"), "--json"]) == 0
    arguments = ["--set", "tournament.pods=1000000000000", "--dry-run"]
    assert run(["tournament", str(tmp_path / "mine.toml"), *arguments]) == 2
    assert "GB of memory" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in features.BUILT_IN_FEATURES if name != "return_1"])
def test_features_that_need_a_sixth_of_the_bars_are_left_out(name: str) -> None:
    values = features.compute_one(PANEL, features.lookup(name))
    warm_up = int(np.argmax(np.isfinite(values).any(1)))
    short = dataclasses.replace(SAMPLE, bars=6 * (warm_up - 1))
    assert warm_up <= 2 or fitting_features(("return_1", name), short) == ("return_1",)
