"""Row 43 against the real daemon process: files of a promoted run that are not those that were tested."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.paper.process.harness import DaemonHarness
from tests.paper.trained_run import damage, judged, train
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

CONFIG = {"": {"strategy": None, "run": "run"}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder)
    judged(folder, verdict={"promoted": True, "reasons": []})
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Iterator[DaemonHarness]:
    """Four sessions; before the third's decision a byte of the weights changes, before the fourth's it is as before."""
    folder = tmp_path_factory.mktemp("rows")
    shutil.copytree(trained, folder / "run")
    weights = sorted((folder / "run" / "snapshots").glob("*.safetensors"))[0]
    with DaemonHarness(folder, config=CONFIG) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[1].close + 600, lambda: damage(weights))
        harness.run_until(harness.days[2].close + 600, lambda: damage(weights))  # twice is not at all
        harness.run_until(harness.days[3].close + 600, harness.slow_clock)
        harness.code = harness.stop()  # type: ignore[attr-defined]
        yield harness


def test_both_invariants_hold(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert run.code == 0  # type: ignore[attr-defined]


def test_weights_that_change_while_it_runs_trade_nothing_until_they_are_right_again(run: DaemonHarness) -> None:
    decisions = run.query("select bar, outcome, detail from decisions order by id")
    assert [outcome for _, outcome, _ in decisions] == ["orders", "orders", "failed", "orders"]
    bar, _, reason = decisions[2]
    assert "is damaged" in reason
    assert run.orders(bar) == []
    assert any(alert.startswith("critical failed") and "is damaged" in alert for alert in run.alerts())
    assert len(run.orders(decisions[0][0])) >= 5


def other_weights(run: Path) -> None:
    damage(sorted((run / "snapshots").glob("*.safetensors"))[0])


def other_features(run: Path) -> None:
    for file in (run / "snapshots").glob("*.json"):
        facts = json.loads(file.read_text())
        facts["spec"]["features"] = 3
        file.write_text(json.dumps(facts))


def other_agents(run: Path) -> None:
    judged(run, champion={"members": ["g0009s00"]})


def other_verdict(run: Path) -> None:
    verdict = run / "verdict.json"
    said = json.loads(verdict.read_text())
    verdict.write_text(json.dumps({**said, "rules": [{**rule, "passed": False} for rule in said["rules"]]}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_weights, "is damaged"),
        (other_features, "takes 3 features"),
        (other_agents, "tested the agents"),
        (other_verdict, "contradicts its own rules"),
    ],
)
def test_a_champion_that_is_not_what_was_tested_does_not_start(
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
