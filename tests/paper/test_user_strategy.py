"""A user's own strategy, file.py:Class, in the daemon: found from the config's folder, and never ends it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from datetime import date
from pathlib import Path

import pytest
from finrl_pod_app.paper.sources import strategy_source

from finrl_pod.errors import InputError
from finrl_pod.paper.journal import schema
from finrl_pod.paper.settings import load, pack, unpack
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
    assert Path(unpack(pack(settings)).strategy.rpartition(":")[0]).is_absolute()
    with pytest.raises(InputError, match="has no Missing"):
        strategy_source(load(folder / "Missing.toml"))


def test_identity_of_a_strategy_is_that_of_its_file(folder: Path) -> None:
    before = strategy_source(load(folder / "Mine.toml")).current().sha256
    (folder / "own.py").write_text(OWN + "# changed\n")
    assert strategy_source(load(folder / "Mine.toml")).current().sha256 != before


@pytest.mark.slow
def test_replay_of_an_own_strategy_equals_its_backtest(folder: Path) -> None:
    _, out, _ = call(folder, "paper", "replay", "2019-01-02", "2019-01-31", folder / "Mine.toml", "--json")
    found = json.loads(out)
    assert found["same"]
    assert found["orders"] == 2
    assert found["strategy"] == "Mine"


@pytest.mark.slow
def test_strategy_that_exits_ends_a_replay_with_its_name(folder: Path) -> None:
    code, _, err = call(folder, "paper", "replay", "2019-01-02", "2019-01-31", folder / "Leaves.toml", "--json")
    assert code in (1, 2)
    assert "Leaves" in err
    assert "SystemExit" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_strategy_that_exits_is_reported_and_the_daemon_goes_on(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, strategy=FunctionStrategy(lambda _: sys.exit(0), name="leaves"))
    sim.day(date(2024, 1, 10))
    outcomes = [row.outcome for row in sim.store.rows(schema.decisions)]
    assert outcomes == ["failed", "failed"]
    assert any("strategy leaves raised SystemExit" in message for _, kind, message in sim.alerts if kind == "failed")


class Unprintable(BaseException):
    """An exception of the user's own whose message cannot be read."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        GeneratorExit(),
        KeyboardInterrupt(),
        SystemExit(0),
        Unprintable(),
        RuntimeError("\x00\ud800"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_strategy_raises_is_its_failure(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon handles SIGINT, so that a KeyboardInterrupt is raised by the code itself."""
    monkeypatch.setattr(signal, "getsignal", lambda _: None)

    def fail(window: object) -> None:
        raise error

    sim = SimulatedDaemon(tmp_path, strategy=FunctionStrategy(fail))
    sim.day(date(2024, 1, 10))
    outcomes = {(row.outcome, row.detail.split(":")[0]) for row in sim.store.rows(schema.decisions)}
    assert outcomes == {("failed", f"strategy function raised {type(error).__name__}")}
    assert {(level, kind) for level, kind, _ in sim.alerts} == {("critical", "failed")}


def test_ctrl_c_during_a_strategy_ends_the_program(tmp_path: Path) -> None:
    def interrupted(window: object) -> None:
        raise KeyboardInterrupt

    sim = SimulatedDaemon(tmp_path, strategy=FunctionStrategy(interrupted))
    with pytest.raises(KeyboardInterrupt):
        sim.day(date(2024, 1, 10))


@pytest.mark.parametrize("raised", ["asyncio.CancelledError()", "BaseException('no')"])
def test_import_that_raises_anything_is_one_sentence(tmp_path: Path, raised: str) -> None:
    (tmp_path / "own.py").write_text(f"import asyncio\nraise {raised}\n")
    (tmp_path / "paper.toml").write_text(TOML.format(name="Mine"))
    with pytest.raises(InputError, match=r"own.py could not be imported"):
        strategy_source(load(tmp_path / "paper.toml"))
