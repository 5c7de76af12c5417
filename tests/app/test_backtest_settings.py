"""Settings of a backtest of an agent change its result, or are refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.evaluation.finished_backtest import SplitName

import finrl_pod as fp
from finrl_pod.errors import ConfigError, FeatureError, InputError
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import Panel
from tests.data.panels import random_panel

BARS = 420  # every second day from 2020-01-01
COMMON = {
    "agent.algorithm": "a2c", "agent.policy": "mlp", "agent.hidden": (4,), "environment.envs": 2,
    "environment.group": 2, "environment.window": 40, "features.names": ("return_1", "return_5"),
    "mandate.base": "none", "splits.train": ("2020-01-01", "2021-08-31"),
    "splits.validation": ("2021-09-01", "2022-01-20"), "splits.test": ("2022-01-21", "2022-04-15"),
    "splits.embargo": 2,
}  # fmt: skip
TRADES = {"environment.kind": "stock_trading", "environment.cash": 50_000.0}
POOR = {**TRADES, "environment.cash": 4_000.0}
SHORT = {**TRADES, "environment.short": True}
# Rules that an agent is trained under, and another value of a field.
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "kind": (TRADES, "portfolio"),
    "source": (TRADES, "file.py:Class"),
    "evaluation_episodes": (TRADES, 3),
    "cost_bps": (TRADES, 50.0),
    "cash": (TRADES, 20_000.0),
    "window": (TRADES, 20),
    "reward": (TRADES, "change"),
    "risk_aversion": (TRADES, 2.0),
    "fill": (TRADES, "same_close"),
    "buy_allocation": ({**TRADES, "environment.cash": 400.0}, "sequential"),
    "whole_shares": ({**TRADES, "environment.adjusted_shares": True}, True),
    "short": (TRADES, True),
    "leverage": (POOR, 0.5),
    "hmax": (TRADES, 1.0),
    "turbulence_limit": (TRADES, 0.5),
    "half_spread": (TRADES, "from data"),
    "half_spread_bps": (TRADES, 20.0),
    "per_share": ({**TRADES, "environment.adjusted_shares": True}, 0.1),
    "per_share_minimum": (TRADES, 2.0),
    "cost_model": (TRADES, "COSTS:Double"),
    "impact": ({**TRADES, "environment.participation": 0.1}, 0.5),
    "participation": (TRADES, 1e-5),
    "borrow_fee": (SHORT, 0.2),
    "delisting_return": (TRADES, -0.5),
    "delay": ({}, 3),
    "cash_rates": (TRADES, [["2020-01-01", 0.1]]),
    "tax_short": (TRADES, 0.3),
    "tax_long": ({**TRADES, "environment.tax_short": 0.3}, 0.2),
    "adjusted_shares": ({**TRADES, "environment.whole_shares": True, "environment.adjusted_shares": True}, False),
    "envs": (TRADES, 1),
    "group": (TRADES, 1),
}
REFUSED = {
    *("kind", "source", "evaluation_episodes", "window", "reward", "risk_aversion", "envs", "group"),
    *("short", "half_spread", "adjusted_shares"),
}
COSTS = """
import torch


class Double:
    name = "double"
    needs_volume = False

    def cost(self, amount, prices, liquidity):
        return 0.01 * amount.abs() * prices

    def slope(self, amount, prices, liquidity):
        return torch.full_like(amount * prices, 0.01) * prices
"""


def prices() -> Panel:
    """Opens, volumes, gaps and a delisting within the validation bars, 720 days after the first."""
    source = random_panel(seed=3, bars=BARS)
    times = source.times[0] + 2 * (source.times - source.times[0])
    return dataclasses.replace(source, name="settings", adjusted=True, times=times)


def trained(settings: dict[str, Any]) -> fp.TrainedAgent:
    return fp.train(fp.make_market(prices(), settings={**COMMON, **settings}), 1, seed=1, progress=False)


def figures(result: fp.Backtest) -> dict[str, float]:
    return {**result.metrics, "end": float(result.result.equity[-1])}


def is_same(one: dict[str, float], other: dict[str, float]) -> bool:
    return one.keys() == other.keys() and all(np.isclose(one[x], other[x], 1e-12, 0, equal_nan=True) for x in one)


def test_every_field_is_tried() -> None:
    assert CASES.keys() == {field.name for field in dataclasses.fields(EnvironmentConfig)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_setting_changes_the_result_or_is_refused(name: str, tmp_path: Path) -> None:
    settings, value = CASES[name]
    if name == "cost_model":
        (tmp_path / "costs.py").write_text(COSTS)
        value = f"{tmp_path / 'costs.py'}:Double"
    agent = trained(settings)
    split: SplitName = "all" if name == "tax_long" else "validation"  # shares are held for a year
    before = figures(fp.backtest(agent, split=split))
    override = {f"environment.{name}": value}
    if name in REFUSED:
        with pytest.raises((InputError, ConfigError), match=f"{name}|whole_shares"):
            fp.backtest(agent, split=split, settings=override)
        return
    after = figures(fp.backtest(agent, split=split, settings=override))
    assert not is_same(before, after)
    other = fp.make_market(prices(), settings={**COMMON, **settings, **override})
    assert is_same(after, figures(fp.backtest(agent, other, split=split)))
    assert is_same(before, figures(fp.backtest(agent, split=split)))  # the agent keeps its own rules


@pytest.mark.slow
def test_prices_without_rules_are_traded_under_those_of_the_agent(tmp_path: Path) -> None:
    agent = trained({**TRADES, "environment.cost_bps": 70.0, "environment.turbulence_limit": 3.0})
    span = {"start": "2021-09-01", "end": "2022-01-20"}
    expected = figures(fp.backtest(agent, **span))
    assert is_same(expected, figures(fp.backtest(agent, prices(), **span)))
    assert is_same(expected, figures(fp.backtest(agent.save(tmp_path / "agent"), prices(), **span)))
    short = fp.load_prices(prices(), start="2021-09-01")
    with pytest.raises(FeatureError, match=r"environment\.turbulence_limit"):
        fp.backtest(agent, short, split="all")


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(MandateConfig)])
def test_a_backtest_keeps_the_mandate(name: str) -> None:
    for target in ("equal_weight", "inverse_volatility"):
        with pytest.raises(ConfigError, match=f"mandate.{name}"):
            fp.backtest(target, prices(), split="all", settings={f"mandate.{name}": 0.3})


@pytest.mark.slow
def test_an_agent_is_not_tested_under_another_mandate() -> None:
    agent = trained({"mandate.base": "equal_weight"})
    other = fp.make_market(prices(), settings={**COMMON, "mandate.base": "equal_weight", "mandate.tilt": 0.3})
    with pytest.raises(InputError, match=r"mandate\.tilt"):
        fp.backtest(agent, other)


@pytest.mark.parametrize("setting", [{"hmax": 1}, {"environment.turbulence_limit": 5}])
def test_rules_of_agents_are_refused_for_other_strategies(setting: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(setting)).removeprefix("environment.")):
        fp.backtest("equal_weight", prices(), split="all", settings=setting)


@pytest.mark.slow
def test_the_champion_of_a_run_takes_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    sizes = {"tournament.pods": 2, "tournament.generations": 1, "tournament.samples_per_generation": 32}
    settings = {**COMMON, **TRADES, **sizes, "tournament.leaderboard": 2, "tournament.champion": 1}
    folder = tmp_path / "run"
    fp.run_tournament("quick", prices(), out=folder, settings=settings, test=False, progress=False)
    before = figures(fp.backtest(folder))
    for override in ({"environment.hmax": 1.0}, {"environment.turbulence_limit": 0.5}):
        assert not is_same(before, figures(fp.backtest(folder, settings=override))), override
    with pytest.raises(InputError, match=r"environment\.hmax"):
        fp.backtest(folder, fp.make_market(prices(), settings={**settings, "environment.hmax": 1.0}))
    assert run(["backtest", str(folder), "--set", "reward=change"]) == 2
    assert "reward" in capsys.readouterr().err
