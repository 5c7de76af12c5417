"""A user's own strategy, file.py:Class, in the daemon: found from the config's folder, and never ends it."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

import pytest
from finrl_pod_app.paper.sources import strategy_source

from finrl_pod.errors import InputError
from finrl_pod.paper.journal import schema
from finrl_pod.paper.settings import load, plain
from tests.app.command import call
from tests.paper.factories import FunctionStrategy, SimulatedDaemon

OWN = """import sys
class Mine:
    def target_weights(self, window, positions):
        return [0.3, 0.2] if not positions.weights.any() else None
class Leaves:
    def target_weights(self, window, positions):
        sys.exit(0)
"""
TOML = """name = "own"
strategy = "own.py:{name}"
symbols = ["AAPL", "KO"]
[broker]
kind = "simulated"
[schedule]
mode = "close"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    for name in ("Mine", "Leaves", "Missing"):
        (tmp_path / f"{name}.toml").write_text(TOML.format(name=name))
    return tmp_path


def test_path_is_taken_from_the_folder_of_the_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    settings = load(folder / "Mine.toml")
    loaded = strategy_source(settings).current()
    assert loaded.strategy.name == "Mine"
    assert Path(str(plain(settings)["strategy"]).rpartition(":")[0]).is_absolute()
    with pytest.raises(InputError, match="no class Missing"):
        strategy_source(load(folder / "Missing.toml"))


def test_identity_of_a_strategy_is_that_of_its_file(folder: Path) -> None:
    before = strategy_source(load(folder / "Mine.toml")).current().sha256
    (folder / "own.py").write_text(OWN + "# changed\n")
    assert strategy_source(load(folder / "Mine.toml")).current().sha256 != before


def test_replay_of_an_own_strategy_equals_its_backtest(folder: Path) -> None:
    _, out, _ = call(folder, "paper", "replay", "2019-01-02", "2019-01-31", folder / "Mine.toml", "--json")
    found = json.loads(out)
    assert found["same"]
    assert found["orders"] == 2
    assert found["strategy"] == "Mine"


def test_strategy_that_exits_ends_a_replay_with_its_name(folder: Path) -> None:
    code, _, err = call(folder, "paper", "replay", "2019-01-02", "2019-01-31", folder / "Leaves.toml", "--json")
    assert code in (1, 2)
    assert "Leaves" in err
    assert "SystemExit" in err
    assert "Traceback" not in err


def test_strategy_that_exits_is_reported_and_the_daemon_goes_on(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, strategy=FunctionStrategy(lambda _: sys.exit(0), name="leaves"))
    sim.day(date(2024, 1, 10))
    outcomes = [row.outcome for row in sim.store.rows(schema.decisions)]
    assert outcomes == ["failed", "failed"]
    assert any("strategy leaves raised SystemExit" in message for _, kind, message in sim.alerts if kind == "failed")
