"""The paper page while a daemon trades five sessions against the fake server: each figure against its journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.fake_alpaca.settings import CorporateAction
from tests.dashboard.page_figures import compare_account, compare_orders
from tests.paper.process.harness import DaemonHarness

pytestmark = pytest.mark.slow

SESSIONS = 5
SHARES = {"slowhand": 0.6, "quickstep": 0.4}
STRATEGIES = "".join(
    f'[[strategies]]\nname = "{name}"\nstrategy = "{strategy}"\nshare = {SHARES[name]}\n'
    for name, strategy in (("slowhand", "random_daily"), ("quickstep", "equal_weight"))
)
ACTIONS = (
    CorporateAction("KO", "2019-01-04", kind="dividend", cash=0.4),
    CorporateAction("AAPL", "2019-01-07", new=2, old=1),
)
TRANSFERS = {2: -15_000.0, 3: 9_000.0}  # dollars by session; the account has more cash than the run


def test_five_sessions(visit: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "paper" / "row"
    folder.mkdir(parents=True)
    top_level = {"": {"strategy": None}}
    with DaemonHarness(folder, config=top_level, partial=0.2, multiplier=1, actions=ACTIONS) as harness:
        harness.toml.write_text(f"{harness.toml.read_text()}{STRATEGIES}")
        harness.start()
        figures = 0
        for number in range(1, SESSIONS + 1):
            # The equity of a session is recorded at the next decision.
            harness.run_until(harness.days[number].open + 1800, harness.stop_clock)
            assert len(harness.query("SELECT * FROM equity")) == number + 1
            app = visit("paper", tmp_path / "runs")
            comparison = compare_account(app, harness.journal, SHARES)
            orders = compare_orders(visit("paper", tmp_path / "runs", view="Orders and fills"), harness.journal)
            assert comparison.faults + orders.faults == []
            assert not app.error
            figures += comparison.count
            if amount := TRANSFERS.get(number):
                entry = {"activity_type": "CSD" if amount > 0 else "CSW", "net_amount": amount}
                harness.server.call(lambda entry=entry: book(harness, entry))
            harness.run_clock()
        assert figures > 40 * SESSIONS
        kinds = {
            kind
            for (kind,) in harness.query("SELECT kind FROM corporate_actions WHERE own_change != '0' OR cash != '0'")
        }
        assert {"split", "transfer"} <= kinds
        harness.stop_at(harness.days[SESSIONS].close + 600)
    assert harness.code == 0


def book(harness: DaemonHarness, entry: dict[str, Any]) -> None:
    """Book a deposit or withdrawal; call in the thread of the server."""
    harness.exchange.book_activities([entry], harness.server.clock.seconds())
