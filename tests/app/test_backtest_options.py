"""`fp.backtest` takes the options of `finrl-pod backtest` and gives the same figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.setup.overrides import apply_settings
from finrl_pod_app.setup.presets import config_text

import finrl_pod as fp
from finrl_pod.errors import ConfigError, InputError
from finrl_pod.settings.run import DataConfig, PPOConfig, RunConfig
from tests.app.small_run import isolated_folders, small_config

SPAN = {"start": "2020-02-03", "end": "2020-09-30"}


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with isolated_folders(tmp_path_factory.mktemp("options")) as folder:
        yield folder


def command_metrics(strategy: str, *options: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    span = [text for name, date in SPAN.items() for text in (f"--{name}", date)]
    assert run(["backtest", "--strategy", strategy, "--data", "main", *span, *options, "--json"]) == 0
    strategies: dict[str, Any] = json.loads(capsys.readouterr().out)["test"]["strategies"]
    return strategies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (("--benchmark", "S0", "--cash", "20000", "--set", "delay=2"),
         {"benchmark": "S0", "cash": 20_000, "settings": {"environment.delay": 2}}),
        (("--cost-bps", "30", "--set", "fill=same_close"), {"cost_bps": 30, "settings": {"fill": "same_close"}}),
        (("--execution", "paper", "--benchmark", "inverse_volatility"),
         {"execution": "paper", "benchmark": "inverse_volatility"}),
    ],
)  # fmt: skip
def test_figures_are_those_of_the_command(
    options: tuple[str, ...], arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = command_metrics("equal_weight_buy_and_hold", *options, capsys=capsys)
    tested = fp.backtest("equal_weight_buy_and_hold", "main", **SPAN, **arguments)
    results = {tested.result.name: tested.result, **tested.baselines}
    assert results.keys() == expected.keys()
    for name, result in results.items():
        for metric, value in result.metrics.items():
            assert value == pytest.approx(expected[name][metric], nan_ok=True), (name, metric)
    assert (tested.benchmark in results) == ("benchmark" in arguments)


@pytest.mark.slow
def test_capacity_and_report_are_those_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tested = fp.backtest("inverse_volatility", "main", **SPAN, capacity=True, adv=1e8, out=tmp_path / "report")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert tested.capacity is not None
    assert report["capacity"]["base"] == tested.capacity.base == "equal_weight"
    page = (tmp_path / "report" / "report.html").read_text()
    assert str(tmp_path) not in page
    saved = fp.Backtest.load(tested.save(tmp_path / "saved.json"))
    assert saved.capacity == tested.capacity
    assert fp.backtest("inverse_volatility", "main", **SPAN, benchmark="index").comparison().base == "index"


def test_settings_take_values_of_numpy_and_paths() -> None:
    values = {
        "environment.hmax": np.int64(50),
        "agent.learning_rate": np.float32(1e-3),
        "environment.whole_shares": np.bool_(False),
        "environment.cost_bps": np.float64(5),
        "environment.reward": Path("mine.py:reward"),
        "agent.hidden": np.array([3, 4]),
        "data.symbols": [np.str_("A")],
    }
    config = apply_settings(RunConfig(), list(values.items()), "settings")
    environment = config.environment
    assert (environment.hmax, environment.cost_bps, environment.reward) == (50, 5.0, "mine.py:reward")
    assert environment.whole_shares is False
    assert isinstance(config.agent, PPOConfig)
    assert (config.agent.learning_rate, config.agent.hidden, config.data.symbols) == (0.001, (3, 4), ("A",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"benchmark": 3}, "benchmark must be text or a Series of index values or None, got 3"),
        ({"benchmark": "inverse_volatility"}, "is the tested strategy"),
        ({"orders": {"stop": 0.1}}, "orders takes shares such as stop_loss"),
        ({"orders": {"stop_loss": "5%"}}, 'orders must be shares such as {"stop_loss": 0.05} or None'),
        ({"orders": 0.1}, "orders must be shares such as"),
        ({"orders": {"stop_loss": 0.1}, "capacity": True}, "stops and limits are simulated"),
        ({"execution": "now"}, "execution must be one of weights, paper, got"),
        ({"execution": "paper", "capacity": True}, "a capacity is computed for strategies"),
        ({"cash": 0}, "cash must be above zero"),
        ({"settings": {"agent.hidden": (3,)}}, "settings agent.hidden: a backtest takes fields of"),
        ({"settings": ["delay=2"]}, "settings must be a dict"),
        ({"adv": 1e8}, "adv is the volume that capacity assumes"),
        ({"capacity": 1}, "capacity must be True or False"),
        ({"out": 3}, "out must be text or a path or None, got 3"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, ConfigError), match=message):
        fp.backtest("inverse_volatility", "main", **{**SPAN, **arguments})


def test_a_symbol_that_is_not_traded_is_a_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traded = fp.load_prices("main", symbols=["S0", "S1"])
    assert fp.make_market("main", settings={"data.symbols": ("S0", "S1")}).panel.symbols == traded.symbols
    full = fp.load_prices("main")
    first = int(np.searchsorted(full.times, np.datetime64(SPAN["start"])))
    held = fp.backtest("inverse_volatility", traded, **SPAN, benchmark="S3", cost_bps=0)
    close = full.close[first:, 3]
    growth = close[len(held.result.equity) - 1] / close[1]  # fills at the next close
    assert held.baselines["S3"].equity[-1] == pytest.approx(1e6 * growth)
    assert held.comparison().base == held.benchmark == "S3"
    config = dataclasses.replace(small_config(), data=DataConfig("main", ("S0", "S1")))
    (tmp_path / "c.toml").write_text(config_text(config))
    (tmp_path / "own.py").write_text("import numpy as np\n\ndef own(panel):\n    return np.ones(panel.close.shape)\n")
    target = ["backtest", "--scores", f"{tmp_path / 'own.py'}:own", "--config", str(tmp_path / "c.toml")]
    assert run([*target, "--benchmark", "S3", "--cost-bps", "0", "--start", SPAN["start"], "--end", SPAN["end"],
                "--json"]) == 0  # fmt: skip
    report = json.loads(capsys.readouterr().out)["test"]
    assert report["benchmark"] == "S3"
    assert report["strategies"]["S3"]["cumulative_return"] == pytest.approx(growth - 1)


def test_index_values_are_a_benchmark() -> None:
    panel = fp.load_prices("main")
    days = pd.DatetimeIndex(panel.times)
    levels = pd.Series(20_000.0 + np.arange(len(days)), days, name="^DJI")
    tested = fp.backtest("inverse_volatility", panel, **SPAN, benchmark=levels, cash=1_000, settings={"cost_bps": 0})
    on_span = levels[SPAN["start"] : SPAN["end"]]
    equity = tested.baselines["^DJI"].equity  # a fraction of the index, with whole shares too
    assert equity[-1] == pytest.approx(1_000 * on_span.iloc[-1] / on_span.iloc[1])
    assert tested.benchmark == "^DJI"
    in_zone = pd.Series(levels.to_numpy(), days.tz_localize("America/New_York"), name="^DJI")
    other = fp.backtest("inverse_volatility", panel, **SPAN, benchmark=in_zone, cash=1_000, settings={"cost_bps": 0})
    np.testing.assert_array_equal(other.baselines["^DJI"].equity, equity)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.drop(x.index[60]), "has no price on 2020-03-01"),
        (lambda x: x.reset_index(drop=True), "dates as its index"),
        (lambda x: x.pct_change(), "no returns"),
        (lambda x: pd.concat([x, x]), "one for each date"),
        (lambda x: x.rename("equal_weight"), "rename the Series"),
        (lambda x: x.astype(str) + "?", "Series of numbers"),
    ],
)
def test_index_values_that_do_not_fit_are_refused(change: Callable[[pd.Series], pd.Series], message: str) -> None:
    panel = fp.load_prices("main")
    levels = 100 - np.random.default_rng(0).random(len(panel.times))
    with pytest.raises(InputError, match=message):
        fp.backtest("equal_weight", panel, **SPAN, benchmark=change(pd.Series(levels, panel.times)))
