"""SIGKILL of the real daemon process between slices, and at the request of a slice."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

SLICED = {"slicing": {"schedule": "twap", "minutes": 40.0, "interval_minutes": 10.0}, "timing": {"poll": 30.0}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    """Daemons killed between the second and third slice, before the POST of a slice, and after its acceptance."""
    with DaemonHarness(tmp_path_factory.mktemp("slices"), config=SLICED) as harness:
        days = harness.days
        harness.start()
        harness.run_until(days[1].open + 15 * 60, harness.kill)
        harness.relaunch(hooks={"die_before_post": ".20190103.KO.b1"})
        harness.relaunch()
        harness.run_until(days[3].open + 5 * 60)
        harness.kill_at_acceptance("XOM")
        harness.stop_at(days[4].close + 600)
        yield harness


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] == 1
    assert run.code == 0


@pytest.mark.parametrize("session", [1, 2, 3, 4])
def test_every_intent_is_filled_once_in_at_most_one_order_a_slice(run: DaemonHarness, session: int) -> None:
    bar, opened = run.days[session - 1].date.isoformat(), run.days[session].open
    intents = run.query(f"select symbol, quantity from intents where bar = '{bar}'")
    assert len(intents) > 3
    for symbol, quantity in intents:
        sent = run.orders(bar, symbol)
        assert sum((order.filled for order in sent), Decimal(0)) == Decimal(quantity)
        steps = [int((order.submitted_at - opened) // 600) for order in sent]
        assert steps == sorted(set(steps))
        assert steps[-1] <= 4
        assert len(run.posts(bar, symbol)) == len(sent)
    assert max(len(run.orders(bar, symbol)) for symbol, _ in intents) >= 3
