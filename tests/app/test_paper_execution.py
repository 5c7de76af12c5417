"""`backtest --execution paper`: orders and equity equal those of a replay of the daemon, to the cent."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.paper.backtest_difference import run_replay

from finrl_pod.data.panel import between, select
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError, InputError
from finrl_pod.paper.settings import load
from tests.app.small_run import run_backtest

CONFIG = """
name = "parity"
journal = "parity.sqlite"
strategy = "momentum_12_1"
symbols = ["AAPL", "JPM", "KO", "XOM"]
capital = 50_000.0
[broker]
kind = "simulated"
cost_bps = 3.0
[schedule]
mode = "close"
[orders]
cash_buffer = 0.05
collar = 0.03
[data]
window = 0
[risk]
max_position = 1.0
max_order = 1.0
"""
SPAN = ("2019-01-02", "2019-03-29")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "paper.toml"
    file.write_text(CONFIG)
    return file


@pytest.mark.slow
def test_orders_and_equity_equal_those_of_a_replay(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, end = (date.fromisoformat(day) for day in SPAN)
    replayed = run_replay(load(config), start, end, tmp_path / "replay.sqlite")
    assert replayed.orders > 5
    arguments = ["backtest", "--strategy", "momentum_12_1", "--execution", "paper", "--paper", str(config)]
    assert run([*arguments, "--start", SPAN[0], "--end", SPAN[1], "--json"]) == 0
    tested = json.loads(capsys.readouterr().out)
    assert tested["execution"] == "paper"
    assert tested["orders"]["momentum_12_1"] == replayed.orders
    years = (replayed.sessions - 1) / 252
    equity = 50_000.0 * (1 + tested["test"]["strategies"]["momentum_12_1"]["annual_return"]) ** years
    assert f"{equity:.2f}" == f"{replayed.equity:.2f}"
    assert tested["test"]["cost_bps"] == 3.0
    assert tested["data"]["symbols"] == ["AAPL", "JPM", "KO", "XOM"]
    assert any("5% of equity kept in cash" in rule for rule in tested["rules"])
    assert tested["rules"][0] == "Accounts start with 50,000 in cash; amounts are in the currency of the prices."


@pytest.mark.slow
def test_membership_of_stored_prices_does_not_change_what_the_daemon_trades(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    settings = load(config)
    panel = between(select(Store().load("sample"), settings.symbols), "2017-01-03", None)
    is_member = panel.times >= np.datetime64("2019-06-03")  # joins after the replay
    members = np.repeat(is_member[:, None], len(panel.symbols), 1)
    Store().save(dataclasses.replace(panel, name="dated", members=members, benchmark=None, cash_rates=()))
    broker = dataclasses.replace(settings.broker, panel="dated")
    replayed = run_replay(
        dataclasses.replace(settings, broker=broker), date(2019, 1, 2), date(2019, 1, 11), tmp_path / "replay.sqlite"
    )
    assert (replayed.same, replayed.orders > 0) == (True, True)


@pytest.mark.slow
def test_without_a_paper_config_its_defaults_apply() -> None:
    weights = run_backtest("equal_weight", start=SPAN[0], end=SPAN[1])
    orders = run_backtest("equal_weight", start=SPAN[0], end=SPAN[1], execution="paper")
    free, paper = (d["test"]["strategies"]["equal_weight"]["annual_return"] for d in (weights, orders))
    assert free != paper
    assert paper == pytest.approx(free, abs=0.1)  # cash buffer and whole shares
    assert "index" in orders["test"]["strategies"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", ["delay=2", "half_spread_bps=100", "cash_rates=[['2019-01-01', 0.05]]", "delisting_return=-0.5"]
)
def test_unsupported_frictions_are_refused_instead_of_ignored(setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"does not support environment\.{setting.split('=')[0]} = .*; it must be"):
        run_backtest("equal_weight", start=SPAN[0], end=SPAN[1], execution="paper", settings=(setting,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('x')", r"strategy Mine failed at 2019-01-0\d: KeyError: 'x', mine.py line \d+"),
        ("return [0.5]", r"target weights of Mine at 2019-01-0\d must be one number for each"),
        ("return np.full(len(window.symbols), -0.01)", "must not be negative without short selling"),
    ],
)
def test_failing_strategy_is_reported_with_its_date(tmp_path: Path, body: str, message: str) -> None:
    file = tmp_path / "mine.py"
    head = "import numpy as np\nclass Mine:\n    name, feature_names, lookback = 'Mine', (), 60\n"
    file.write_text(f"{head}    def target_weights(self, window, positions):\n        {body}\n")
    with pytest.raises(InputError, match=message):
        run_backtest(f"{file}:Mine", start=SPAN[0], end=SPAN[1], execution="paper")
    file.write_text(file.read_text().replace("60", "'60'"))
    with pytest.raises(InputError, match="lookback of strategy Mine must be an integer of at least 1 bar, got "):
        run_backtest(f"{file}:Mine", start=SPAN[0], end=SPAN[1], execution="paper")


def test_a_paper_config_needs_paper_execution(config: Path) -> None:
    with pytest.raises(InputError, match='needs execution "paper"'):
        run_backtest("equal_weight", paper=load(config))
