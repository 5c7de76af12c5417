"""`backtest --flows` and tax rates: what reports and files say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.cli.main import run

import finrl_pod as fp
from tests.app.small_run import isolated_folders


@pytest.fixture
def store(tmp_path: Path) -> Iterator[None]:
    with isolated_folders(tmp_path):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_reports_show_flows_and_taxes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flows.csv"
    path.write_text("date,amount\n2021-03-01,50000\n2021-05-03,-20000.5\n")
    plain = ["backtest", "--strategy", "momentum_12_1", "--data", "main", "--split", "all", "--cash", "100000"]
    arguments = [*plain, "--flows", str(path), "--set", "tax_short=0.4", "--set", "tax_long=0.2"]
    assert run([*arguments, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("TWR", "MWR", "after tax", "After tax momentum 12-1 returned"))
    document = json.loads((tmp_path / "out/report.json").read_text())
    strategies = document["test"]["strategies"]
    assert strategies.keys() == {"momentum_12_1", "equal_weight", "index", "savings_plan"}
    for metrics in strategies.values():
        assert metrics["after_tax_return"] <= metrics["cumulative_return"] + 1e-9
        assert isinstance(metrics["money_weighted_return"], float)
    (flows,) = (rule for rule in document["rules"] if rule.startswith("Deposits"))
    assert "1, 50,000 in all; withdrawals: 1, 20,000 in all" in flows
    assert any(rule.startswith("Tax on gains") for rule in document["rules"])
    page = (tmp_path / "out/report.html").read_text()
    assert "Money-weighted return" in page
    assert "points" in page
    bars = pd.read_csv(tmp_path / "out/bars.csv").query("strategy == 'index'")
    paid = bars.set_index("time")["flow"]
    assert paid[paid != 0].to_dict() == {"2021-03-01": 50000.0, "2021-05-03": -20000.5}
    assert run([*plain, "--flows", "-90000"]) == 2
    assert "is more than the account has" in capsys.readouterr().err
    assert run([*plain, "--flows", "5", "--capacity"]) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_the_savings_plan_buys_what_is_paid_in_and_never_sells(tmp_path: Path) -> None:
    result = fp.backtest("savings_plan", "main", split="all", flows=1000.0)
    assert set(result.trades["side"]) == {"buy"}
    months = result.trades["time"].dt.to_period("M").nunique()
    assert result.result.flows is not None
    assert months >= np.count_nonzero(result.result.flows)
    frame = result.to_frame()
    assert frame["equity"].to_numpy() == pytest.approx(result.result.balance)
    loaded = type(result).load(result.save(tmp_path / "result.json"))
    assert loaded.result.balance == pytest.approx(result.result.balance)
