"""`paper run --check` finds what would stop a daemon, and places no order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.paper import owner_checks
from finrl_pod_app.paper.owner_checks import check_start

from finrl_pod.errors import AuthenticationError
from finrl_pod.paper.settings import MonitoringSettings, PaperConfig
from tests.paper.factories import SimulatedDaemon, config

NAMES = ["keys", "account", "calendar", "clock", "receivers", "data", "champion", "limits"]


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedDaemon:
    """A simulated account that the checks open."""
    simulation = SimulatedDaemon(tmp_path, config(strategy="equal_weight", journal=str(tmp_path / "none.sqlite")))
    monkeypatch.setattr(owner_checks, "open_clock", lambda _: simulation.clock)
    monkeypatch.setattr(owner_checks, "open_broker", lambda *_, listen: (simulation.broker, simulation.broker))
    for name in ("FINRL_POD_ALERT_URLS", "FINRL_POD_TELEGRAM_TOKEN", "FINRL_POD_PING_URL", "FINRL_POD_WEBHOOK_SECRET"):
        monkeypatch.delenv(name, raising=False)
    return simulation


def statuses(settings: PaperConfig) -> dict[str, str]:
    return {check.name: check.status for check in check_start(settings, allow_unpromoted=False).checks}


def test_all_checks_pass_without_an_order(sim: SimulatedDaemon) -> None:
    result = check_start(sim.config, allow_unpromoted=False)
    assert [check.name for check in result.checks] == NAMES
    assert {check.status for check in result.checks} == {"ok"}, result.checks
    assert not result.failed
    assert not sim.broker.called("submit")
    assert not Path(sim.config.journal).exists()


def test_refused_keys_skip_what_needs_the_broker(sim: SimulatedDaemon) -> None:
    def refuse(_: Any) -> None:
        raise AuthenticationError("refused")

    sim.broker.overrides = {"account": refuse}
    found = statuses(sim.config)
    assert found["keys"] == "failed"
    assert {name for name, status in found.items() if status == "skipped"} == {"account", "calendar", "clock", "data"}


@pytest.mark.parametrize(
    ("method", "answer", "unfit"),
    [
        ("account", lambda original: dataclasses.replace(original(), block="trading_blocked"), {"account": "failed"}),
        ("calendar", lambda *_: (), {"calendar": "failed", "data": "skipped"}),
        ("clock", lambda original: original().replace(year=2099), {"clock": "failed"}),
        ("assets", lambda *_: {}, {"data": "failed"}),
    ],
)
def test_faulty_answer_fails_its_check(
    sim: SimulatedDaemon, method: str, answer: Callable[..., Any], unfit: dict[str, str]
) -> None:
    sim.broker.overrides = {method: answer}
    assert {name: status for name, status in statuses(sim.config).items() if status != "ok"} == unfit


def test_receiver_without_its_secret_fails(sim: SimulatedDaemon) -> None:
    settings = dataclasses.replace(sim.config, monitoring=MonitoringSettings(webhook="https://example.com/hook"))
    assert statuses(settings)["receivers"] == "failed"


def test_strategy_that_the_config_leaves_no_room_for_fails(sim: SimulatedDaemon) -> None:
    assert statuses(dataclasses.replace(sim.config, strategy="none_such"))["champion"] == "failed"
    narrow = dataclasses.replace(sim.config, risk=dataclasses.replace(sim.config.risk, max_order=1e-9))
    assert statuses(narrow)["limits"] == "failed"
