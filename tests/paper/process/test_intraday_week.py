"""A simulated week of decisions within the session: the real daemon process on the fake server's minute bars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal

import pytest

from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

SESSIONS = 5
PACE = 5.0  # slow: a page of minute bars takes the server long on a busy machine
CONFIG = {
    "": {"strategy": "own.py:HalfHours", "symbols": ["AAPL", "JPM", "KO", "XOM"]},
    "intraday": {"minutes": 30},
    "data": {"window": 20},
    "timing": {"poll": 60.0},
    "monitoring": {"heartbeat": "heartbeat.json", "summary_minutes": 20.0},
}
OWN = '''
import numpy as np


class HalfHours:
    """Holds another pair of the symbols after each half hour."""

    name = "half_hours"
    feature_names = ()
    lookback = 3

    def target_weights(self, window, positions):
        bar = int(window.times[-1].astype("datetime64[m]").astype(int)) // 30
        weights = np.full(len(window.symbols), 0.1)
        weights[bar % len(window.symbols)] = weights[(bar + 1) % len(window.symbols)] = 0.38
        return weights
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    """Killed twice within the session: on the second day, and at an order's acceptance on the fourth."""
    folder = tmp_path_factory.mktemp("week")
    (folder / "own.py").write_text(OWN)
    with DaemonHarness(folder, config=CONFIG, working_pace=PACE) as harness:
        days = harness.days
        harness.start()
        harness.kill_at(days[1].open + 100 * 60)
        harness.run_until(days[3].open + 5 * 60)
        harness.kill_at_acceptance()
        harness.stop_at(days[SESSIONS].open + 2400)
        yield harness


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] == 1
    assert run.code == 0


def test_every_half_hour_is_decided(run: DaemonHarness) -> None:
    for session in run.days[:SESSIONS]:
        day = session.date.isoformat()
        decided = run.query(f"select outcome from decisions where bar like '{day}T%'")
        assert len(decided) == (session.close - session.open - 300) // 1800
        assert {outcome for (outcome,) in decided} <= {"orders", "missed"}
        assert [outcome for (outcome,) in decided].count("missed") <= 1
    marks = [session for (session,) in run.query("select session from equity")]
    assert marks[1:] == [session.date.isoformat() for session in run.days[: len(marks) - 1]]


def test_decisions_see_the_served_bars(run: DaemonHarness) -> None:
    ((inputs,),) = run.query("select inputs from decisions order by id limit 1")
    seen = json.loads(inputs)
    assert seen["window"]["bars"] == 20
    first = run.days[0]
    row = run.exchange.prices.price_at("KO", first.open + 1800)
    assert Decimal(seen["closes"]["KO"]) == pytest.approx(Decimal(repr(row)), abs=Decimal("1e-9"))


def test_summaries_follow_each_close(run: DaemonHarness) -> None:
    assert len([alert for alert in run.alerts() if alert.startswith("info summary")]) == SESSIONS
