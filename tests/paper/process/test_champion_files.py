"""Row 43 against the real daemon process: a promoted run whose files differ from the tested ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.paper.process.harness import DaemonHarness
from tests.paper.trained_run import damage, trained_copy, update_report
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

CONFIG = {"": {"strategy": None, "run": "run"}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = trained_copy(tmp_path_factory, "run")
    update_report(folder, verdict={"promoted": True, "reasons": []})
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Iterator[DaemonHarness]:
    """Four sessions; the weights are damaged before the third decision and restored before the fourth."""
    folder = tmp_path_factory.mktemp("rows")
    shutil.copytree(trained, folder / "run")
    weights = sorted((folder / "run" / "snapshots").glob("*.safetensors"))[0]
    with DaemonHarness(folder, config=CONFIG) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[1].close + 600, lambda: damage(weights))
        harness.run_until(harness.days[2].close + 600, lambda: damage(weights))  # the second call restores the file
        harness.run_until(harness.days[3].close + 600, harness.slow_clock)
        harness.code = harness.stop()  # type: ignore[attr-defined]
        yield harness


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert run.code == 0  # type: ignore[attr-defined]


def test_changed_weights_are_not_traded_until_restored(run: DaemonHarness) -> None:
    decisions = run.query("select bar, outcome, detail from decisions order by id")
    assert [outcome for _, outcome, _ in decisions] == ["orders", "orders", "failed", "orders"]
    bar, _, reason = decisions[2]
    assert "is damaged" in reason
    assert run.orders(bar) == []
    assert any(alert.startswith("critical failed") and "is damaged" in alert for alert in run.alerts())
    assert len(run.orders(decisions[0][0])) >= 5


def change_weights(run: Path) -> None:
    damage(sorted((run / "snapshots").glob("*.safetensors"))[0])


def change_features(run: Path) -> None:
    for file in (run / "snapshots").glob("*.json"):
        facts = json.loads(file.read_text())
        facts["spec"]["features"] = 3
        file.write_text(json.dumps(facts))


def change_agents(run: Path) -> None:
    update_report(run, champion={"members": ["g0009s00"]})


def change_verdict(run: Path) -> None:
    verdict = run / "verdict.json"
    said = json.loads(verdict.read_text())
    verdict.write_text(json.dumps({**said, "rules": [{**rule, "passed": False} for rule in said["rules"]]}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_weights, "is damaged"),
        (change_features, "takes 3 features"),
        (change_agents, "tested the agents"),
        (change_verdict, "contradicts its own rules"),
    ],
)
def test_daemon_does_not_start_with_a_changed_champion(
    trained: Path, tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    change(run)
    with DaemonHarness(tmp_path, config=CONFIG) as harness:
        assert harness.launch().wait() == 2
        log = (harness.folder / "daemon.log").read_text()
        assert words in log
        assert "Traceback" not in log
        assert not harness.requests()
