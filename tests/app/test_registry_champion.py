"""The daemon trades champions that are handed over to its strategy, and goes back to the one before."""

from __future__ import annotations

import dataclasses
import json
import shutil
from datetime import date
from pathlib import Path

import pytest
from finrl_pod_app.cli import main
from finrl_pod_app.paper.sources import RegistryChampion

from finrl_pod.errors import RegistryError, RunError
from finrl_pod.paper.journal import schema
from finrl_pod.registry.agent_registry import AgentRegistry
from finrl_pod.registry.handover import hand_over, last_handover
from finrl_pod.registry.records import Champion
from finrl_pod.tournament import snapshots
from tests.paper.factories import SYMBOLS, SimulatedDaemon, config, prices
from tests.paper.trained_run import trained_copy, update_report

pytestmark = pytest.mark.slow

HISTORY = date(2023, 11, 1)  # before the first decision, for features and mandate
PAPER = """
name = "test"
journal = "journal.sqlite"
symbols = ["AA", "BB", "CC"]
registry = "registry"
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = trained_copy(tmp_path_factory)
    update_report(folder, verdict={"promoted": True, "reasons": ["first"]})
    return folder


@pytest.fixture
def registry(tmp_path: Path) -> AgentRegistry:
    return AgentRegistry(str(tmp_path / "registry"))


@pytest.fixture
def champions(trained: Path, registry: AgentRegistry, tmp_path: Path) -> tuple[Champion, Champion]:
    """Two champions in the registry whose agents differ, the first handed over to strategy "main"."""
    newer = tmp_path / "two"
    shutil.copytree(trained, newer)
    for file in (newer / "snapshots").glob("*.json"):
        snapshots.save(file.parent, dataclasses.replace(snapshots.load(file), seed=99))
    update_report(newer, verdict={"promoted": True, "reasons": ["second"]})
    first, second = registry.push(trained), registry.push(newer)
    hand_over(registry, "main", first)
    return first, second


def write_config(folder: Path, line: str = 'champion = "main"') -> str:
    (folder / "paper.toml").write_text(PAPER + line + "\n")
    return str(folder / "paper.toml")


def test_daemon_takes_a_new_champion_at_its_next_session_and_goes_back(
    champions: tuple[Champion, Champion],
    registry: AgentRegistry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = champions
    sim = SimulatedDaemon(tmp_path / "daemon", config(strategy="", champion="main"), panel=prices(HISTORY))
    sim.source = RegistryChampion("main", registry.store.address, SYMBOLS)  # type: ignore[assignment]
    sim.restart()

    def traded() -> list[str]:
        return [row.sha256 for row in sim.store.rows(schema.strategies)]

    sim.day(date(2024, 1, 18))
    assert traded() == [first.address]
    hand_over(registry, "main", second)
    assert traded() == [first.address]
    sim.day(date(2024, 1, 19))
    assert traded() == [first.address, second.address]
    assert any(kind == "strategy" and second.address[:12] in text for _, kind, text in sim.alerts)
    assert main.run(["paper", "rollback", write_config(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["champion"], document["replaced"]) == (first.address, second.address)
    sim.restart()  # a daemon that was down takes it as well
    sim.day(date(2024, 1, 22))
    assert traded() == [first.address, second.address, first.address]
    outcomes = {row.outcome for row in sim.store.rows(schema.decisions)}
    assert outcomes <= {"orders", "hold"}
    sim.assert_journal_matches_broker()


def test_champion_is_kept_while_the_registry_cannot_be_read_or_the_newer_one_not_loaded(
    champions: tuple[Champion, Champion], registry: AgentRegistry, tmp_path: Path
) -> None:
    source = RegistryChampion("main", registry.store.address, SYMBOLS)
    loaded = source.current()
    assert (loaded.sha256, loaded.warning) == (champions[0].address, "")
    assert source.current() is loaded
    hand_over(registry, "main", champions[1])
    record = tmp_path / "registry" / "champions" / f"{champions[1].address}.json"
    text = record.read_text()
    record.write_text(text + " ")
    kept = source.current()
    assert kept.strategy is loaded.strategy
    assert f"is damaged: its hash differs; push its run again; champion {loaded.sha256[:12]} is still" in kept.warning
    record.write_text(text)
    assert (source.current().sha256, source.current().warning) == (champions[1].address, "")
    shutil.move(tmp_path / "registry", tmp_path / "elsewhere")
    assert "no champion was handed over" in source.current().warning
    (tmp_path / "registry").write_text("a file")
    assert source.current().sha256 == champions[1].address
    with pytest.raises(RegistryError):
        RegistryChampion("main", registry.store.address, SYMBOLS).current()


def test_warning_is_alerted_and_trading_continues(
    champions: tuple[Champion, Champion], registry: AgentRegistry, tmp_path: Path
) -> None:
    sim = SimulatedDaemon(tmp_path / "daemon", config(strategy="", champion="main"), panel=prices(HISTORY))
    sim.source = RegistryChampion("main", registry.store.address, SYMBOLS)  # type: ignore[assignment]
    sim.restart()
    sim.day(date(2024, 1, 18))
    shutil.move(tmp_path / "registry", tmp_path / "elsewhere")
    sim.day(date(2024, 1, 19))
    assert "registry" in sim.alert_kinds()
    assert {row.outcome for row in sim.store.rows(schema.decisions)} <= {"orders", "hold"}


def test_champion_that_was_not_promoted_never_trades(trained: Path, registry: AgentRegistry, tmp_path: Path) -> None:
    """Also if the registry's record says otherwise: the files of its run decide."""
    run = tmp_path / "refused"
    shutil.copytree(trained, run)
    update_report(run, verdict={"promoted": False, "reasons": []})
    forged = dataclasses.replace(registry.push(run), promoted=True)
    registry.store.write(f"champions/{forged.address}.json", forged.encode())
    hand_over(registry, "main", forged)
    with pytest.raises(RunError, match="was not promoted"):
        RegistryChampion("main", registry.store.address, SYMBOLS).current()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('champion = "main"', "no champion was handed over to strategy 'main'"),
        ('champion = "a b"', "a strategy name has letters"),
        ('strategy = "equal_weight"', "registry is only read for a champion"),
    ],
)
def test_bad_input_of_rollback_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert main.run(["paper", "rollback", write_config(tmp_path, line)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert message in printed.err


def test_rollback_of_a_config_without_a_champion_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "paper.toml"
    file.write_text(PAPER.replace('registry = "registry"', 'strategy = "equal_weight"'))
    assert main.run(["paper", "rollback", str(file)]) == 2
    assert "the config trades no champion of the registry" in capsys.readouterr().err


def test_rollback_of_the_first_champion_changes_nothing(
    champions: tuple[Champion, Champion], registry: AgentRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["paper", "rollback", write_config(tmp_path)]) == 2
    assert "has no champion before" in capsys.readouterr().err
    change = last_handover(registry, "main")
    assert change is not None
    assert change.champion == champions[0].address


def test_champion_is_kept_while_the_files_of_the_newer_one_are_malformed(
    champions: tuple[Champion, Champion], registry: AgentRegistry, tmp_path: Path
) -> None:
    source = RegistryChampion("main", registry.store.address, SYMBOLS)
    loaded = source.current()
    run = tmp_path / "two"  # of the second champion, whose agents differ
    update_report(run, verdict={"promoted": True, "reasons": ["third"]}, champion=["a list"])
    hand_over(registry, "main", registry.push(run))
    kept = source.current()
    assert kept.strategy is loaded.strategy
    assert "cannot be read" in kept.warning
