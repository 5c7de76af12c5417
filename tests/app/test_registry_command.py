"""`finrl-pod registry` on the champion of a run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from finrl_pod_app.api import setup as api
from finrl_pod_app.cli import main
from finrl_pod_app.paper.sources import load_promoted

from finrl_pod.files import write_json
from finrl_pod.registry.agent_registry import AgentRegistry, run_files
from finrl_pod.registry.handover import last_handover
from finrl_pod.tournament import snapshots
from finrl_pod.tournament.run_directory import RunDirectory
from tests.paper.trained_run import damage, trained_copy, update_report

pytestmark = pytest.mark.slow

PROMOTED = {"promoted": True, "reasons": ["all rules pass"]}


class CommandOutput(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.out)
        return values


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, its champion not promoted."""
    return trained_copy(tmp_path_factory)


@pytest.fixture
def promoted(run: Path, tmp_path: Path) -> Path:
    """A copy of the run whose champion is promoted."""
    copy = tmp_path / "promoted"
    shutil.copytree(run, copy)
    update_report(copy, verdict=PROMOTED)
    return copy


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., CommandOutput]:
    """Run `finrl-pod registry` in this process, on a registry in FINRL_POD_HOME."""
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))

    def command(*arguments: str | Path) -> CommandOutput:
        code = main.run(["registry", *map(str, arguments)])
        return CommandOutput(code, *capsys.readouterr())

    return command


def test_pushed_champion_is_listed_and_shown(call: Callable[..., CommandOutput], run: Path) -> None:
    assert "No champions in" in call("list").out
    address = call("push", run, "--json").document["champion"]
    assert call("push", run, "--json").document["champion"] == address  # again changes nothing
    document = call("list", "--json").document
    (row,) = document["champions"]
    assert (row["address"], row["run"], row["promoted"], row["agents"]) == (address, "one", False, 2)
    shown = call("show", address[:8], "--json").document
    assert [agent["id"] for agent in shown["agents"]] == row["members"]
    assert shown["reasons"]
    assert sum(agent["share"] for agent in shown["agents"]) == pytest.approx(1)
    agent = call("show", shown["agents"][0]["address"], "--json").document
    assert agent["champion"] == address
    assert agent["hyperparameters"]["learning_rate"] > 0
    assert agent["data_sha256"] == row["data_sha256"] == RunDirectory.open(run).data_sha256
    assert address[:12] in call("list").out
    assert shown["agents"][0]["address"][:12] in call("show", address).out


def test_pulled_champion_equals_its_run(call: Callable[..., CommandOutput], promoted: Path, tmp_path: Path) -> None:
    address = call("push", promoted, "--json").document["champion"]
    out = tmp_path / "pulled"
    assert call("pull", address, "--out", out).code == 0
    agents = {file.stem for file in (promoted / "snapshots").iterdir()}
    assert run_files(out, agents) == run_files(promoted, agents)
    symbols = ("AAPL", "JPM")
    assert load_promoted(out, symbols).sha256 == load_promoted(promoted, symbols).sha256
    refused = call("pull", address, "--out", out)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "is not an empty folder" in refused.err


def test_pulled_agent_can_be_loaded(call: Callable[..., CommandOutput], run: Path, tmp_path: Path) -> None:
    address = call("push", run, "--json").document["champion"]
    agent = call("show", address, "--json").document["agents"][0]
    assert call("pull", agent["address"], "--out", tmp_path / "agent").code == 0
    assert api.load(tmp_path / "agent" / agent["id"]).name == agent["id"]


def test_push_hands_over_promoted_champions_only(call: Callable[..., CommandOutput], run: Path, promoted: Path) -> None:
    refused = call("push", run, "--strategy", "main")
    assert (refused.code, "not promoted" in refused.out) == (1, True)
    assert last_handover(AgentRegistry(), "main") is None
    assert call("push", promoted, "--strategy", "main", "--json").document["handed_over"]
    address = call("list", "--json").document["strategies"][0]["champion"]
    assert "main trades" in call("list").out
    (change,) = call("show", "main", "--json").document["changes"]
    assert change["champions"] == [address]
    assert "hand over" in call("show", "main").out
    removed = call("gc", "--refused", "--min-age", "0", "--json").document
    assert len(removed["champions"]) == 1
    assert removed["kept"] == 1
    assert call("pull", address, "--out", promoted.parent / "again").code == 0


def test_agent_of_other_data_is_refused(call: Callable[..., CommandOutput], promoted: Path) -> None:
    run = RunDirectory.open(promoted)
    agent = json.loads((promoted / "report.json").read_text())["champion"]["members"][0]
    snapshots.save(promoted / "snapshots", dataclasses.replace(run.snapshot(agent), data_sha256="ef" * 32))
    done = call("push", promoted)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"agent {agent} of {promoted} was trained on data efefefefefef, but its run on" in done.err
    assert call("list", "--json").document["champions"] == []


def test_damaged_files_are_noticed_at_every_read(
    call: Callable[..., CommandOutput], promoted: Path, tmp_path: Path
) -> None:
    address = call("push", promoted, "--json").document["champion"]
    champion = AgentRegistry().champion(address)
    digest = champion.files[f"snapshots/{champion.members[0].id}.safetensors"]
    stored = tmp_path / "home" / "registry" / "objects" / digest[:2] / digest
    damage(stored)
    done = call("pull", address, "--out", tmp_path / "out")
    assert (done.code, f"file {digest} of the registry" in done.err, "is damaged" in done.err) == (2, True, True)
    stored.unlink()
    assert "is missing" in call("pull", address, "--out", tmp_path / "out2").err
    record = tmp_path / "home" / "registry" / "champions" / f"{address}.json"
    record.write_text(record.read_text().replace('"promoted": true', '"promoted": false'))
    done = call("list")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "is damaged: its hash differs" in done.err


def test_record_with_paths_outside_the_folder_is_refused(
    call: Callable[..., CommandOutput], promoted: Path, tmp_path: Path
) -> None:
    registry = AgentRegistry(str(tmp_path / "home" / "registry"))
    champion = registry.push(promoted)
    name, digest = next(iter(champion.files.items()))
    forged = dataclasses.replace(champion, files={**champion.files, f"../{name}": digest})
    (tmp_path / "home" / "registry" / "champions" / f"{forged.address}.json").write_bytes(forged.encode())
    done = call("pull", forged.address, "--out", tmp_path / "inner" / "out")
    assert (done.code, f"../{name} outside its run" in done.err) == (2, True)
    assert not (tmp_path / "inner" / name).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "abcdef"], "has no champion 'abcdef'; see them with `finrl-pod registry list`"),
        (["show", "ab"], "an address needs at least 4 characters, got 'ab'"),
        (["pull", "abcdef", "--out", "nowhere"], "has no champion 'abcdef'"),
        (["push", "nowhere"], "there is no folder nowhere"),
        (["push", ".", "--strategy", "a b"], "a strategy name has letters"),
        (["list", "--registry", "ftp://host/x"], "a registry is a folder or an address that starts with"),
        (["gc", "--registry", "/proc/registry", "--min-age", "-1"], "--min-age"),
    ],
)
def test_bad_input_is_one_line(call: Callable[..., CommandOutput], arguments: list[str], message: str) -> None:
    done = call(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err


def test_registry_that_cannot_be_written_is_named(call: Callable[..., CommandOutput], run: Path) -> None:
    done = call("push", run, "--registry", "/proc/registry")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "cannot write to the registry /proc/registry" in done.err


def test_run_without_a_verdict_is_refused(call: Callable[..., CommandOutput], promoted: Path) -> None:
    (promoted / "verdict.json").unlink()
    assert "holds no verdict" in call("push", promoted).err
    write_json(promoted / "verdict.json", {})
    assert call("push", promoted).code == 2
