"""Backtests and sweeps through the services and the command line: results, files, messages and exit codes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.evaluation.backtests import prepare
from finrl_pod_app.evaluation.finished_backtest import run_references
from finrl_pod_app.evaluation.sweeps import run_sweep
from finrl_pod_app.setup.overrides import override_config
from finrl_pod_app.setup.presets import config_text

import finrl_pod as fp
from finrl_pod.data.panel import make_panel
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError, InputError, Interrupted, RunError
from finrl_pod.evaluate.metrics import METRIC_NAMES
from finrl_pod.settings.run import MandateConfig, RunConfig
from finrl_pod.tournament.progress import Progress
from finrl_pod.types import Floats, Panel
from tests.app.small_run import fill_store, run_backtest, small_config, small_panel

STRATEGIES = """
import numpy as np

class Mine:
    feature_names = ("return_5",)
    def target_weights(self, window, positions):
        if len(window.times) % 20:
            return None
        score = np.exp(np.nan_to_num(window.features[:, 0]))
        return score / score.sum()

class Averse(Mine):
    feature_names = ("volatility_21",)
    def target_weights(self, window, positions):
        return None if positions.weights.any() else np.full(len(window.symbols), 0.1)

class Exiting:
    def target_weights(self, window, positions):
        import sys
        sys.exit(0)

class Printing(Mine):
    def target_weights(self, window, positions):
        print("debug output")
        return super().target_weights(window, positions)

class Broken:
    def target_weights(self, window, positions):
        return np.full(len(window.symbols), 1.0)
"""
SPLITS = ("train", "validation", "test", "all")
SPAN = {"start": "2021-01-01", "end": "2021-10-31"}


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINRL_POD_DATA", str(root))
        fill_store(root)
        yield root


@pytest.fixture
def strategy_target(tmp_path: Path) -> str:
    (tmp_path / "strategies.py").write_text(STRATEGIES)
    return f"{tmp_path / 'strategies.py'}:Mine"


def bars_of(document: dict[str, Any]) -> tuple[str, str]:
    first, last = document["splits"]["test"]
    return first, last


@pytest.mark.slow
def test_strategies_of_ones_own_are_tested_on_validation_unless_asked_otherwise(
    strategy_target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        name: run_backtest(strategy_target, data="main", split=name)
        for name in ("train", "validation", "test", "all", None)
    }
    assert bars_of(found[None]) == bars_of(found["validation"])
    assert bars_of(found["train"])[1] < bars_of(found["validation"])[0]
    assert bars_of(found["validation"])[1] < bars_of(found["test"])[0]
    assert bars_of(found["all"]) == ("2020-01-01", "2021-11-30")
    assert [name for name, document in found.items() if "looks" in document] == ["test", "all"]
    assert run(["backtest", strategy_target, "--data", "main"]) == 0
    assert "Period: validation split, " in capsys.readouterr().out
    assert run(["sweep", "--strategy", strategy_target, "--strategy", "equal_weight", "--data", "main"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("Period: ") == 1
    assert "Period: validation split, " in shown


@pytest.mark.slow
def test_dates_override_the_split_and_count_as_a_look_only_on_test(strategy_target: str) -> None:
    test_begins = bars_of(run_backtest(strategy_target, data="main", split="test"))[0]
    chosen = run_backtest(strategy_target, data="main", split="train", start="2020-06-01", end="2020-07-01")
    assert bars_of(chosen) == ("2020-06-01", "2020-07-01")
    assert "looks" not in chosen
    assert "looks" in run_backtest(strategy_target, data="main", start="2020-06-01", end=test_begins)


def test_folder_of_a_run_is_not_overwritten(strategy_target: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunError, match="has a run that would be overwritten"):
        run_backtest(strategy_target, data="main", out=tmp_path, **SPAN)


def test_negative_costs_are_refused(strategy_target: str) -> None:
    with pytest.raises(ConfigError, match=r"environment\.cost_bps is out of its range, got -500"):
        run_backtest(strategy_target, data="main", settings=("cost_bps=-500",), **SPAN)


def test_hourly_and_daily_bars_of_the_same_closes_have_equal_annual_metrics(tmp_path: Path, store: Path) -> None:
    """Seven bars per day, of which only the last one moves."""
    days = np.arange("2020-01-01", "2020-07-01", dtype="datetime64[D]")
    close = 100 * np.cumprod(1 + np.random.default_rng(0).normal(1e-3, 0.01, (len(days), 2)), axis=0)
    hours = (days[:, None] + np.arange(14, 21).astype("timedelta64[h]")).ravel().astype("datetime64[ns]")
    held = np.vstack([close[:1], np.repeat(close, 7, axis=0)[:-1]])
    Store(store).save(make_panel(hours, ("A", "B"), {"close": held}, name="hourly", bar="1h"))
    Store(store).save(make_panel(days.astype("datetime64[ns]"), ("A", "B"), {"close": close}, name="daily"))
    found = {
        name: run_backtest("equal_weight_buy_and_hold", data=name, cost_bps=0)["test"]["strategies"]
        for name in ("hourly", "daily")
    }
    for name in ("annual_return", "annual_volatility", "sharpe"):
        hourly, daily = (found[panel]["equal_weight_buy_and_hold"][name] for panel in ("hourly", "daily"))
        assert hourly == pytest.approx(daily, rel=0.1)


@pytest.mark.slow
def test_look_backs_on_intraday_bars_are_explained(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    days = np.arange("2020-01-01", "2020-03-01", dtype="datetime64[D]")
    times = (days[:, None] + np.arange(14, 21).astype("timedelta64[h]")).ravel().astype("datetime64[ns]")
    close = 100 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.01, (len(times), 2)), 0))
    Store(store).save(make_panel(times, ("A", "B"), {"close": close}, name="intraday", bar="1h"))
    assert run(["backtest", "--strategy", "momentum_12_1", "--data", "intraday"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "252 bars, a year of daily prices, are 35.6 calendar days of these" in shown
    document = run_backtest("equal_weight", data="intraday")
    assert document["bars"] in document["rules"]
    assert "bars" not in run_backtest("equal_weight", data="main", **SPAN)


@pytest.mark.slow
def test_backtest_of_a_user_strategy_writes_a_complete_report(strategy_target: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    document = run_backtest(
        strategy_target,
        data="main",
        out=out,
        settings=("half_spread_bps=2", "cost_bps=7.5", "cash_rates=[['2020-01-01', 0.02]]"),
        **SPAN,
    )
    assert list(document["test"]["strategies"]) == ["Mine", "equal_weight", "index"]
    assert json.loads((out / "report.json").read_text()) == json.loads(json.dumps(document))
    sheet, about = document["test"]["tearsheet"], document["test"]["strategies"]["Mine"]
    assert sheet["of"] == "Mine"
    assert set(sheet["costs"]["Mine"]["parts"]) == {"commission", "spread"}
    assert sheet["costs"]["Mine"]["carry"] > 0
    assert sum(sheet["costs"]["Mine"]["parts"].values()) == pytest.approx(about["costs_paid"])
    curve = document["test"]["cost_curve"]
    assert [row["cost_bps"] for row in curve] == [0, 2, 5, 7.5, 10, 20, 50, 100]
    assert curve[3]["sharpe"] == pytest.approx(about["sharpe"])
    assert all(a["annual_return"] >= b["annual_return"] for a, b in pairwise(curve))
    assert document["test"]["band"]["level"] == 0.9
    page = (out / "report.html").read_text()
    assert "7.5 (this run)" in page
    for text in ("Rolling Sharpe", "Monthly returns", "Sensitivity to costs", "Distribution", "Half spread"):
        assert text in page
    bars = pd.read_parquet(out / "bars.parquet")
    assert set(bars["strategy"]) == {"Mine", "equal_weight", "index"}
    assert bars[bars["strategy"] == "Mine"]["costs"].sum() == pytest.approx(about["costs_paid"])
    weights = pd.read_parquet(out / "weights.parquet")
    assert weights.groupby(["strategy", "time"])["weight"].sum().max() <= 1 + 1e-9
    rows = list(csv.reader((out / "weights.csv").read_text().splitlines()))
    assert rows[0] == ["strategy", "time", "symbol", "weight"]
    assert len(rows) == len(weights) + 1
    profits = pd.read_csv(out / "attribution.csv")
    own = bars[bars["strategy"] == "Mine"]["equity"]
    assert profits["profit"].sum() == pytest.approx(own.iloc[-1] - own.iloc[0])
    trades = pd.read_csv(out / "trades.csv")
    assert trades["cost"].sum() == pytest.approx(about["costs_paid"])
    assert set(trades["side"]) == {"buy", "sell"}
    found = document["attribution"]
    held = profits[~profits["symbol"].isin(["costs", "carry"])]
    assert sum(found["by_asset"].values()) == pytest.approx(held["profit"].sum())
    assert [row["year"] for row in found["by_year"]] == [2021]


def test_error_in_a_user_strategy_is_one_line_with_the_bar(
    strategy_target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = strategy_target.replace(":Mine", ":Broken")
    assert run(["backtest", broken, "--data", "main", "--split", "all"]) == 2
    err = capsys.readouterr().err
    assert "Broken failed at 2020-01-01: NameError" not in err
    assert "target weights at 2020-01-01 may add up to 1 at most" in err
    assert err.count("\n") == 1
    assert run(["backtest", "--strategy", "nowhere.py:Mine"]) == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err


@pytest.mark.slow
def test_a_baseline_needs_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["backtest", "equal_weight", "--data", "main", "--json"]) == 0
    assert "equal_weight" in json.loads(capsys.readouterr().out)["test"]["strategies"]
    for command in ("backtest", "audit"):
        for name, meant in (("equal weight", "equal_weight"), ("momentum", "momentum_12_1")):
            assert run([command, name]) == 2
            message = f"finrl-pod: there is no run in {name!r}; did you mean the strategy {meant}?\n"
            assert capsys.readouterr().err == message
        assert run([command, "runs/none"]) == 2
        assert "there is no folder runs/none" in capsys.readouterr().err
    Path("equal_weight").mkdir()  # a folder of that name is a run's
    assert run(["backtest", "equal_weight", "--json"]) == 2
    assert "equal_weight holds no run" in capsys.readouterr().err


def test_strategy_can_neither_exit_the_command_nor_print_into_the_json(
    strategy_target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["backtest", strategy_target.replace(":Mine", ":Exiting"), "--data", "main", "--split", "all", "--json"])
        == 2
    )
    assert "strategy Exiting failed at 2020-01-01: SystemExit: 0" in capsys.readouterr().err
    assert run(["backtest", strategy_target.replace(":Mine", ":Printing"), "--data", "main", "--json"]) == 0
    done = capsys.readouterr()
    assert json.loads(done.out)["test"]["strategies"]["Printing"]
    assert "debug output" in done.err
    file = Path(strategy_target.removesuffix(":Mine"))
    file.write_text("raise SystemExit('done')")
    assert run(["backtest", strategy_target, "--data", "main"]) == 2
    assert "could not be imported: SystemExit: done" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("per_share=0.005",), "per_share counts shares, but the prices of 'main' are adjusted"),
        (("whole_shares=true",), "whole_shares counts shares"),
        (("participation=0.1",), "need prices with volumes"),
        (("delays=2",), "unknown key environment.delays; did you mean delay"),
        (("delay=two",), "environment.delay"),
        (("delay",), "--set takes name=value"),
    ],
)
def test_invalid_settings_are_refused(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        run_backtest("equal_weight", data="main", settings=settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_costs_per_share_on_adjusted_prices_need_confirmation_and_warn() -> None:
    settings = ("per_share=0.01", "per_share_minimum=1.0", "adjusted_shares=true")
    document = run_backtest("equal_weight", data="main", settings=settings, **SPAN)
    assert any("Warning: commission per share on adjusted prices" in rule for rule in document["rules"])
    assert document["test"]["tearsheet"]["costs"]["equal_weight"]["parts"]["per share"] > 0
    assert "per share" not in document["test"]["tearsheet"]["costs"]["index"]["parts"]


@pytest.mark.slow
def test_sweep_row_of_every_combination_equals_its_backtest(strategy_target: str, tmp_path: Path) -> None:
    periods = [("2021-01-01", "2021-06-30"), ("2021-03-01", None)]
    out = tmp_path / "sweep"
    document = run_sweep(
        ["equal_weight", "index", strategy_target],
        costs=[0.0, 10.0, 50.0],
        periods=periods,
        data="main",
        cash=5e5,
        out=out,
    ).to_dict()
    rows = document["rows"]
    assert len(rows) == 3 * 3 * 2
    for row in rows:
        target = strategy_target if row["strategy"] == "Mine" else row["strategy"]
        same = run_backtest(
            target, data="main", start=row["start"], end=row["end"], cost_bps=row["cost_bps"], cash=5e5
        )["test"]["strategies"][row["strategy"]]
        # These strategies only depend on whether they hold positions, so costs change no decision.
        same = {name: same[name] for name in METRIC_NAMES}
        assert {name: row[name] for name in same} == pytest.approx(same, rel=1e-9, abs=1e-9)
    document: dict[str, Any] = json.loads((out / "sweep.json").read_text())
    assert document["rows"] == json.loads(json.dumps(rows))
    assert len(pd.read_parquet(out / "sweep.parquet")) == len(rows) == len((out / "sweep.csv").read_text().split()) - 1


@pytest.mark.slow
def test_sweep_does_not_depend_on_the_size_of_its_batches(
    strategy_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep_rows() -> Any:
        periods = [("2021-01-01", "2021-06-30"), (None, None)]
        return run_sweep(
            [strategy_target, "random_weights", "index"], costs=[0.0, 10.0], periods=periods, data="main"
        ).to_dict()["rows"]

    whole = sweep_rows()
    monkeypatch.setattr("finrl_pod_app.evaluation.sweeps.MAX_TABLE_BYTES", 1)
    assert sweep_rows() == whole


def test_parts_of_an_active_return_are_its_sum() -> None:
    Store().save(small_panel("six", assets=6))
    report = run_backtest("momentum_12_1", data="six", start="2021-03-01", end="2021-10-29")
    found = report["active_attribution"]
    names = {"market_beta", "momentum", "reversal", "low_volatility", "residual", "costs"}
    assert (found["base"], found["parts"].keys()) == ("equal_weight", names)
    assert sum(found["parts"].values()) == pytest.approx(found["total"], abs=1e-12)
    assert found["total"] == pytest.approx(report["comparison"]["active_return"]["value"])
    residual = found["residual_interval"]
    assert residual["low"] < residual["value"] == found["parts"]["residual"] < residual["high"]
    assert found["condition_number"] > 1


@pytest.mark.slow
def test_prices_are_loaded_once_for_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = Store.load
    monkeypatch.setattr(Store, "load", lambda self, name: (loaded.append(name), load(self, name))[1])
    run_sweep(["random_weights"], seeds=range(5), periods=[("2021-01-01", None), (None, None)], data="main")
    assert len(loaded) == 2


SEEDED_STRATEGY = """
import numpy as np

class Seeded:
    def __init__(self, seed=0):
        self.feature_names = (("return_5", "return_1")[seed],)
    def target_weights(self, window, positions):
        return np.nan_to_num(np.exp(window.features[:, 0])) / (2 * len(window.symbols))
"""


def test_features_of_a_strategy_may_depend_on_the_seed(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SEEDED_STRATEGY)
    target = f"{tmp_path / 'own.py'}:Seeded"
    rows = run_sweep([target], seeds=[0, 1], data="main").to_dict()["rows"]
    for row in rows:
        same = run_backtest(target, data="main", seed=row["seed"])["test"]["strategies"]["Seeded"]
        same = {name: same[name] for name in METRIC_NAMES}
        assert {name: row[name] for name in same} == pytest.approx(same, rel=1e-9, abs=1e-9)
    assert rows[0]["sharpe"] != rows[1]["sharpe"]


@pytest.mark.slow
def test_interrupted_sweep_keeps_its_rows(tmp_path: Path) -> None:
    reports: list[Progress] = []

    def stop(progress: Progress) -> None:
        reports.append(progress)
        if len(reports) == 3:
            raise KeyboardInterrupt

    def sweep(out: Path | None) -> None:
        reports.clear()
        run_sweep(["random_weights"], costs=[0, 5], seeds=range(9), data="main", out=out, progress=stop)

    with pytest.raises(Interrupted, match="4 of 18 rows are kept in"):
        sweep(tmp_path / "new")
    document = json.loads((tmp_path / "new" / "sweep.json").read_text())
    assert [(row["seed"], row["cost_bps"]) for row in document["rows"]] == [(0, 0), (0, 5), (1, 0), (1, 5)]
    assert "14 of 18 rows are missing" in document["note"]
    assert [(report.samples, report.total_samples) for report in reports] == [(0, 18), (2, 18), (4, 18)]
    assert reports[0].seconds_left is None
    for out in (None, tmp_path / "new"):  # an existing complete result is not replaced by a partial one
        with pytest.raises(KeyboardInterrupt):
            sweep(out)


def test_every_seed_has_its_own_row() -> None:
    rows = run_sweep(["random_weights"], seeds=[1, 2, 3], data="main").to_dict()["rows"]
    assert [row["seed"] for row in rows] == [1, 2, 3]
    assert len({row["sharpe"] for row in rows}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a sweep needs at least one strategy"),
        (["--strategy", "equal_weight", "--cost-bps", "a,b"], "--cost-bps takes numbers such as 0,5,10"),
        (["--strategy", "equal_weight", "--cost-bps", "-1"], "cost_bps must be at least 0"),
        (["--strategy", "equal_weight", "--period", "2020"], "--period takes START:END"),
        (["--strategy", "equal_weight", "--seeds", "5-1"], "--seeds takes numbers such as 0-9"),
        (["--strategy", "equal_weight", "--seeds", "1"], "uses no random numbers"),
        (["--strategy", "equal_weight", "--seeds", "0-999999"], "is too large"),
    ],
)
def test_invalid_sweep_arguments_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", *arguments, "--data", "main"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_capacity_stands_in_the_document(strategy_target: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", "main", "--start", SPAN["start"], "--end", SPAN["end"]]
    assert run(["backtest", "--strategy", strategy_target, *options, "--capacity", "--adv", "1e7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["capacity"]
    assert found["base"] == "equal_weight"
    assert found["adv"] == 1e7
    assert 0 < found["curve"][0]["cost"] < found["curve"][3]["cost"]
    assert all(row["low"] <= row["active_growth"] <= row["high"] for row in found["curve"])


@pytest.mark.slow
def test_metrics_are_against_the_chosen_benchmark(
    strategy_target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", "main", "--start", SPAN["start"], "--end", SPAN["end"], "--json"]

    def against(name: str | None, *more: str) -> dict[str, Any]:
        chosen = [] if name is None else ["--benchmark", name]
        assert run(["backtest", "--strategy", strategy_target, *options, *chosen, *more]) == 0
        return dict(json.loads(capsys.readouterr().out)["test"])

    symbol = small_panel().symbols[0]
    held = against(symbol, "--out", str(tmp_path / "out"))
    assert held["benchmark"] == symbol
    assert held["strategies"][symbol]["effective_number"] == pytest.approx(1)
    assert held["strategies"][symbol]["beta"] == pytest.approx(1)
    prices = Store().load("main")
    first, last = (int(np.searchsorted(prices.times, np.datetime64(day))) for day in (SPAN["start"], SPAN["end"]))
    close = prices.close[first : last + 1, 0]
    fill = prices.close[first + 1, 0] if prices.open is None else prices.open[first + 1, 0]
    assert held["strategies"][symbol]["cumulative_return"] == pytest.approx(close[-1] / fill - 1, abs=0.005)  # costs
    assert f"<h2>Against {symbol}</h2>" in (tmp_path / "out" / "report.html").read_text()
    default = against(None)
    assert default["strategies"]["Mine"]["beta"] != held["strategies"]["Mine"]["beta"]
    assert against("momentum_12_1")["benchmark"] == "momentum_12_1"
    own = strategy_target.replace(":Mine", ":Averse")
    assert against(own)["benchmark"] == "Averse"


@pytest.mark.parametrize(("name", "message"), [("equal_weigth", "did you mean equal_weight?"), ("Mine", "unknown")])
def test_an_unknown_benchmark_is_refused(
    name: str, message: str, strategy_target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["backtest", "--strategy", strategy_target, "--data", "main", "--benchmark", name]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert run(["backtest", "--strategy", strategy_target, "--data", "main", "--benchmark", strategy_target]) == 2
    assert "is the tested strategy" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--adv", "1e7"], "give both"),
        (["--capacity", "--execution", "paper"], "exact weights"),
        (["--capacity", "--adv", "0"], "adv must be above 0"),
    ],
)
def test_senseless_capacities_are_refused(
    arguments: list[str], message: str, strategy_target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", "main", "--start", SPAN["start"], "--end", SPAN["end"]]
    assert run(["backtest", "--strategy", strategy_target, *options, *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_stops_are_given_on_the_command_line(
    strategy_target: str, tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.02, (300, 2)), 0))
    days = np.datetime64("2020-01-01", "ns") + np.arange(300) * np.timedelta64(1, "D")
    columns = {"close": close, "open": close, "high": close * 1.02, "low": close * 0.98}
    Store(store).save(make_panel(days, ("A", "B"), columns, name="ohlc"))
    plain = ["backtest", "--strategy", "equal_weight_buy_and_hold", "--data", "ohlc", "--json"]
    assert run(plain) == 0
    held = json.loads(capsys.readouterr().out)
    assert run([*plain, "--orders", "stop_loss=0.05", "--out", str(tmp_path / "out")]) == 0
    stopped = json.loads(capsys.readouterr().out)
    name = "equal_weight_buy_and_hold"
    assert stopped["test"]["strategies"][name] != held["test"]["strategies"][name]
    assert any(rule.startswith("Stop: ") for rule in stopped["rules"])
    profit = sum(row["profit"] - row["costs"] for row in stopped["attribution"]["by_year"])
    assert profit == pytest.approx(1e6 * stopped["test"]["strategies"][name]["cumulative_return"], rel=1e-9)
    for arguments, message in (
        (["--orders", "stop=0.1"], "--orders takes shares such as stop_loss=0.1"),
        (["--orders", "stop_loss=2"], "stop_loss must be at least 0 and below 1"),
        (["--orders", "stop_loss=0.1", "--capacity"], "without capacity"),
        (["--orders", "stop_loss=0.1", "--data", "sample"], "need open, high and low"),
    ):
        assert run([*plain, *arguments]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tested", "data", "names"),
    [
        ("momentum_12_1", "main", ["equal_weight", "index"]),
        ("equal_weight", "main", ["index"]),
        ("index", "main", ["equal_weight"]),
        ("momentum_12_1", "other", ["equal_weight"]),
    ],
)
def test_references_are_those_of_the_report_without_the_tested_strategy(
    tested: str, data: str, names: list[str]
) -> None:
    prepared = prepare(tested, data=data, **SPAN)
    found = run_references(tested, prepared.panel, prepared.market_period)
    assert list(found) == names
    document = run_backtest(tested, data=data, **SPAN)
    for name, result in found.items():
        assert result.metrics["sharpe"] == document["test"]["strategies"][name]["sharpe"]
        assert (result.times[0], len(result.times)) == (prepared.panel.times[prepared.first], len(result.equity))


SCORES = """
import numpy as np
def zero(panel): return np.zeros(panel.close.shape)
def first(panel): return np.where(np.arange(panel.close.shape[1]) == 0, 20.0, -20.0) + 0 * panel.close
def transposed(panel): return panel.close.T
number = 3
"""
CHOSEN = {"start": "2021-04-01", "end": "2021-06-30"}


@pytest.fixture
def scores(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(SCORES)
    (tmp_path / "c.toml").write_text(config_text(small_config()))
    (tmp_path / "free.toml").write_text(config_text(replace(small_config(), mandate=MandateConfig(base="none"))))
    return f"{tmp_path / 'own.py'}"


@pytest.mark.slow
def test_scores_of_ones_own_trade_under_the_mandate_of_a_config(
    scores: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def document(name: str) -> dict[str, Any]:
        arguments = ["--scores", f"{scores}:{name}", "--config", str(tmp_path / "c.toml")]
        assert run(["backtest", *arguments, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    even, tilted = document("zero"), document("first")
    strategies = even["test"]["strategies"]
    base = strategies["mandate_at_tilt_zero"]["annual_return"]
    assert strategies["zero"]["annual_return"] == pytest.approx(base, rel=1e-12)
    assert tilted["test"]["strategies"]["first"]["effective_number"] < strategies["zero"]["effective_number"]
    assert tilted["comparison"]["base"] == "mandate_at_tilt_zero"
    assert "looks" not in tilted


@pytest.mark.slow
def test_scores_of_ones_own_in_python(scores: str) -> None:
    config = small_config()
    sharpe = run_backtest(f"{scores}:first", scoring=config, **CHOSEN)["test"]["strategies"]["first"]["sharpe"]

    def first(panel: Panel) -> Floats:
        sign = np.where(np.arange(panel.close.shape[1]) == 0, 1.0, -1.0)
        return np.broadcast_to(20 * sign, panel.close.shape)

    for target in (first, f"{scores}:first"):
        tested = fp.backtest(target, small_panel(), config=config, **CHOSEN)
        assert tested.metrics["sharpe"] == pytest.approx(sharpe)
    looks = [fp.backtest(first, small_panel(), config=config, split="test").looks for _ in range(2)]
    assert looks[0] == looks[1]  # the same function of the same mandate is one subject
    other = replace(config, mandate=MandateConfig(tilt=0.1))
    assert fp.backtest(first, small_panel(), config=other, split="test").looks == looks[0] + 1


@pytest.mark.slow
def test_scores_and_configs_are_the_same_on_the_command_line_and_in_python(
    scores: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "costly.toml").write_text(config_text(override_config(RunConfig(), cost_bps=50)))
    period = {"start": "2017-01-03", "end": "2017-06-30"}
    dates = [word for name, date in period.items() for word in (f"--{name}", date)]
    sharpes = []
    for file in (None, tmp_path / "costly.toml"):
        config = [] if file is None else ["--config", str(file)]
        assert run(["backtest", "--scores", f"{scores}:first", *config, *dates, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)["test"]["strategies"]["first"]
        tested = fp.backtest(f"{scores}:first", "sample", config=file, **period)
        assert printed["sharpe"] == pytest.approx(tested.metrics["sharpe"])
        sharpes.append(printed["sharpe"])
    assert sharpes[0] > sharpes[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "equal_weight", "--config", "c.toml"], "--config has the mandate of --scores"),
        (["--scores", "{}:zero", "--config", "c.toml", "--strategy", "equal_weight"], "takes one of"),
        (["--scores", "{}:zero", "--config", "free.toml"], 'mandate.base of the config is "none"'),
        (["--scores", "{}:zero", "--config", "missing.toml"], "there is no config"),
        (["--scores", "missing.py:zero", "--config", "c.toml"], "there is no file missing.py"),
        (["--scores", "{}:absent", "--config", "c.toml"], "own.py has no absent"),
        (["--scores", "{}:number", "--config", "c.toml"], "must be a function of a panel, got int"),
        (["--scores", "{}:transposed", "--config", "c.toml"], "shape"),
        (["--scores", "return_5", "--config", "c.toml"], "file.py:Name"),
    ],
)
def test_scores_that_cannot_be_traded_are_refused(
    arguments: list[str],
    message: str,
    scores: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["backtest", *(text.format(scores) for text in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) <= 2
