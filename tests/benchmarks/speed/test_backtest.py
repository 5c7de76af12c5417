"""The backtest benchmark: rows, input errors and comparison with peer libraries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.runner import main
from benchmarks.speed.backtest import BacktestSettings, backtest_rows, draw_weights
from finrl_pod.errors import ConfigError, SetupError

SMALL = {"variations": 6, "assets": 5, "days": 40, "runs": 1}


def test_rows_hold_rates_and_their_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.speed.backtest.PEER", tmp_path / "none")
    assert main(["backtest", "--json", *(word for k, v in SMALL.items() for word in (f"--{k}", str(v)))]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert set(rows) == {"backtest_variations", "backtest_rate", "backtest_rate_torch"}
    assert all(row["value"] > 0 for row in rows.values())
    assert rows["backtest_variations"]["unit"] == "ms"
    assert rows["backtest_rate"]["config"]["variations"] == 6


def test_peer_is_compared_by_rate_and_wealth(tmp_path: Path) -> None:
    """A fake interpreter prints the output of the peers' script, which is compared with our own results."""
    peer_output = {
        "vectorbt_rates": [2.0, 4.0],
        **{f"{name}_{kind}": 1.0 for name in ("vectorbt", "bt") for kind in ("free", "costs")},
        "versions": {"vectorbt": "1"},
    }
    peer = tmp_path / "peer"
    peer.write_text(
        f"#!/bin/sh\ncat <<'END'\n{json.dumps(peer_output)}\nEND\n"
    )  # a path in a #! line must not contain spaces
    peer.chmod(0o755)
    rows = {row.name: row for row in backtest_rows(BacktestSettings(**SMALL, peer=str(peer)))}
    assert rows["vectorbt_rate"].value == 3.0
    assert rows["times_vectorbt"].value == pytest.approx(rows["backtest_rate"].value / 3.0)
    difference = rows["wealth_free_vectorbt"]
    assert difference.value == pytest.approx(abs(difference.config["ours"] - 1.0))
    assert "fee" in rows["wealth_costs_bt"].config["difference"]


@pytest.mark.slow
def test_invalid_settings_and_peers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backtest", "--variations", "0"]) == 2
    assert "--variations must be at least 1, got 0" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--days"):
        backtest_rows(BacktestSettings(days=2))
    with pytest.raises(SetupError, match="cannot be run"):
        backtest_rows(BacktestSettings(**SMALL, peer=str(tmp_path / "none")))
    with pytest.raises(SetupError, match="install vectorbt and bt there"):
        backtest_rows(BacktestSettings(**SMALL, peer=sys.executable))


def test_weights_sum_to_the_invested_fraction_and_are_reproducible() -> None:
    weights = draw_weights(3, 4, 5)
    assert weights.shape == (3, 4, 5)
    assert weights.sum(-1).numpy() == pytest.approx(0.99)
    assert bool((weights == draw_weights(3, 4, 5)).all())
    assert not bool((weights[0] == weights[1]).all())
