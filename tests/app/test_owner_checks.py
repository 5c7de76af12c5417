"""`paper run --check` finds what would stop a daemon, and places no order."""

from __future__ import annotations

import dataclasses
import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.paper import owner_checks
from finrl_pod_app.paper.owner_checks import CheckResult, check_start

from finrl_pod.errors import AuthenticationError, BrokerUnavailable
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import JournalLock
from finrl_pod.paper.settings import DataSettings, MonitoringSettings, PaperConfig
from tests.paper.factories import SimulatedDaemon, config

OWN = """import numpy as np
def expanding(panel):
    count = np.arange(1, len(panel.close) + 1)[:, None]
    growth = np.nan_to_num(np.log(panel.close))
    mean = np.cumsum(growth, 0) / count
    return (growth - mean) / np.sqrt(np.maximum(np.cumsum(growth**2, 0) / count - mean**2, 1e-12))
class Trailing:
    lookback, feature_names = 1, ("return_5",)
    def target_weights(self, window, positions):
        return np.ones(len(window.symbols)) / len(window.symbols)
class Expanding(Trailing):
    feature_names = (__file__ + ":expanding",)
"""
NAMES = ["journal", "port", "keys", "account", "calendar", "clock", "receivers", "data", "champion", "limits"]


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


def test_broker_without_an_answer_is_not_called_a_refusal_of_the_keys(sim: SimulatedDaemon) -> None:
    def unreachable(_: Any) -> None:
        raise BrokerUnavailable("NameResolutionError")

    sim.broker.overrides = {"account": unreachable}
    keys = check_start(sim.config, allow_unpromoted=False).checks[NAMES.index("keys")]
    assert keys.status == "failed"
    assert "cannot be reached: NameResolutionError" in keys.detail


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


def test_damaged_row_of_the_journal_fails_the_account(sim: SimulatedDaemon) -> None:
    settings = dataclasses.replace(sim.config, journal=str(sim.journal))
    assert statuses(settings)["account"] == "ok"
    sim.store.add(
        schema.decisions, sim.clock.now(), run="test", bar="2024-01-08", strategy="equal_weight", feed="x", inputs="{}",
        outcome="orders", detail="nothing",
    )  # fmt: skip
    account = check_start(settings, allow_unpromoted=False).checks[NAMES.index("account")]
    assert account.status == "failed"
    assert "row 1 of table decisions" in account.detail


def test_receiver_without_its_secret_fails(sim: SimulatedDaemon) -> None:
    settings = dataclasses.replace(sim.config, monitoring=MonitoringSettings(webhook="https://example.com/hook"))
    assert statuses(settings)["receivers"] == "failed"


@pytest.mark.filterwarnings("ignore:.*imghdr:DeprecationWarning")  # of apprise
@pytest.mark.parametrize("url", ["foo://x", "slack://badurl", "nonsense-of-a-token"])
def test_receiver_that_apprise_cannot_use_fails(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("FINRL_POD_ALERT_URLS", "json://127.0.0.1:9")
    assert statuses(sim.config)["receivers"] == "ok"
    monkeypatch.setenv("FINRL_POD_ALERT_URLS", f"json://127.0.0.1:9 {url}")
    receivers = check_start(sim.config, allow_unpromoted=False).checks[NAMES.index("receivers")]
    assert receivers.status == "failed"
    assert "address 2 (" in receivers.detail
    assert url not in receivers.detail


def test_journal_without_room_or_in_an_unusable_place_fails(
    sim: SimulatedDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for journal in (tmp_path / "file" / "journal.sqlite", tmp_path):
        assert statuses(dataclasses.replace(sim.config, journal=str(journal)))["journal"] == "failed"

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    journal_check = check_start(sim.config, allow_unpromoted=False).checks[NAMES.index("journal")]
    assert (journal_check.status, "No space left" in journal_check.detail) == ("failed", True)


def test_port_must_be_free_but_for_the_daemon_of_this_journal(sim: SimulatedDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = dataclasses.replace(sim.config, monitoring=MonitoringSettings(port=port))
        assert statuses(settings)["port"] == "failed"
        with JournalLock(Path(settings.journal)):
            assert statuses(settings)["port"] == "ok"
        assert statuses(settings)["port"] == "failed"
    assert statuses(settings)["port"] == "ok"


def test_strategy_that_the_config_leaves_no_room_for_fails(sim: SimulatedDaemon) -> None:
    assert statuses(dataclasses.replace(sim.config, strategy="none_such"))["champion"] == "failed"
    narrow = dataclasses.replace(sim.config, risk=dataclasses.replace(sim.config.risk, max_order=1e-9))
    assert statuses(narrow)["limits"] == "failed"


def test_a_window_that_is_too_short_for_an_endless_memory_is_refused(sim: SimulatedDaemon, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)

    def limits(name: str, window: int) -> CheckResult:
        strategy = f"{tmp_path / 'own.py'}:{name}"
        settings = dataclasses.replace(sim.config, strategy=strategy, data=DataSettings(window))
        return check_start(settings, allow_unpromoted=False).checks[NAMES.index("limits")]

    refused = limits("Expanding", 600)
    assert refused.status == "failed"
    assert "own.py:expanding depends on more than the 600 bars" in refused.detail
    assert {limits("Expanding", 0).status, limits("Trailing", 600).status} == {"ok"}
