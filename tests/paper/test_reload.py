"""A config that is read again: what may change does, at once; what may not is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.paper.runner import DaemonProcess, _reload_config

from finrl_pod.errors import ConfigError
from finrl_pod.paper.journal import schema
from finrl_pod.paper.runtime.build import changed_settings
from finrl_pod.paper.settings import PaperConfig, unpack
from tests.paper.factories import NoHeartbeat, SimulatedDaemon, config


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: replace(c, capital=1.0), "capital cannot change while the daemon runs"),
        (lambda c: replace(c, symbols=("AA",)), "symbols cannot change"),
        (lambda c: replace(c, schedule=replace(c.schedule, mode="close")), "schedule.mode cannot change"),
        (lambda c: replace(c, broker=replace(c.broker, url="http://127.0.0.1:1")), "broker.url cannot change"),
        (
            lambda c: replace(c, name="x", monitoring=replace(c.monitoring, port=80)),
            "monitoring.port, name cannot change while the daemon runs; restart it",
        ),
    ],
)
def test_changes_that_need_a_restart_are_refused(change: Callable[[PaperConfig], PaperConfig], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        changed_settings(config(), change(config()))


def test_changes_that_may_be_made_are_named() -> None:
    after = replace(config(), risk=replace(config().risk, max_position=0.3), timing=replace(config().timing, poll=9.0))
    assert changed_settings(config(), after) == ["risk.max_position: 1.0 -> 0.3", "timing.poll: 60.0 -> 9.0"]
    assert changed_settings(config(), config()) == []


class Reloading:
    """A simulated daemon whose process reloads its config."""

    def __init__(self, folder: Path) -> None:
        self.sim = SimulatedDaemon(folder)
        self.process = DaemonProcess(self.sim.daemon)
        self.parts: Any = (
            self.sim.store, self.sim.broker, self.sim.broker, [self.sim.source], self.sim.host, NoHeartbeat(),
            lambda *alert: self.sim.alerts.append(alert),
        )  # fmt: skip

    def reload(self, read: Callable[[], PaperConfig]) -> None:
        self.process.reload()
        assert self.process.run()
        self.sim.config = _reload_config(self.sim.config, read, self.process, self.parts)
        self.sim.daemon = self.process.daemon


def test_a_tighter_limit_applies_to_the_next_decision(tmp_path: Path) -> None:
    world = Reloading(tmp_path)
    sim = world.sim
    sim.day(date(2024, 1, 10))
    world.reload(lambda: replace(config(), risk=replace(config().risk, max_position=0.2)))
    sim.day(date(2024, 1, 12))
    closes = sim.daemon._c.ledger.closes.prices
    held = {s: q * closes[s] / sim.daemon.trader.equity() for s, q in sim.daemon.trader.positions.items() if q}
    assert max(held.values()) < Decimal("0.22")
    assert ("info", "config", "the config was reloaded: risk.max_position: 1.0 -> 0.2") in sim.alerts
    assert unpack(sim.store.last(schema.settings).content).risk.max_position == 0.2
    sim.assert_journal_matches_broker()


def test_a_reload_leaves_live_orders_alone(tmp_path: Path) -> None:
    world = Reloading(tmp_path)
    sim = world.sim
    sim.run_to(sim.clock.now().replace(day=9, hour=14, minute=15))
    live = {order.id for order in sim.account.orders("open")}
    assert live
    world.reload(config)
    sim.daemon.run(until=lambda: sim.daemon.trading)
    assert {order.id for order in sim.account.orders("open")} == live
    sim.day(date(2024, 1, 9))
    sim.assert_journal_matches_broker()


def test_a_config_that_is_refused_leaves_the_former_one(tmp_path: Path) -> None:
    world = Reloading(tmp_path)
    sim = world.sim
    sim.day(date(2024, 1, 10))

    def unreadable() -> PaperConfig:
        raise ConfigError("paper.toml: unknown key risk.max_posit")

    for read in (unreadable, lambda: replace(config(), capital=1.0)):
        before = sim.daemon
        world.reload(read)
        assert sim.daemon is before
    sim.day(date(2024, 1, 12))
    refused = [message for level, kind, message in sim.alerts if (level, kind) == ("warning", "config")]
    assert len(refused) == 2
    assert "unknown key" in refused[0]
    assert "capital cannot change" in refused[1]
    sim.assert_journal_matches_broker()


def test_a_stop_during_a_reload_is_kept(tmp_path: Path) -> None:
    world = Reloading(tmp_path)
    world.sim.day(date(2024, 1, 9))
    world.process.stop()
    world.process.replace(world.sim.daemon)
    assert not world.process.run()
