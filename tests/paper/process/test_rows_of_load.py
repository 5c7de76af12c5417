"""Row 15 against the real daemon process: a universe of 500 symbols is rebalanced within 200 requests a minute."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from tests.paper.made import prices
from tests.paper.process.harness import Rig
from tests.soak.judge import judge

pytestmark = [pytest.mark.slow, pytest.mark.load]

SYMBOLS = tuple(f"S{number:03d}" for number in range(500))


def test_500_symbols_are_bought_within_the_limit_of_requests(tmp_path: Path) -> None:
    config = {"": {"strategy": "equal_weight", "symbols": list(SYMBOLS), "capital": 50e6}, "data": {"window": 5}}
    panel = prices(date(2024, 1, 2), date(2024, 1, 31), symbols=SYMBOLS)
    with Rig(tmp_path, config=config, panel=panel, start=date(2024, 1, 16), cash=Decimal(60_000_000)) as rig:
        rig.launch()
        rig.started()
        rig.go()
        rig.reach(rig.days[0].close + 600, rig.slow)
        assert rig.stop() == 0
        assert {o.status for o in rig.orders()} == {"filled"}
        assert len(rig.orders()) == len(SYMBOLS)
        verdict = judge(rig.log, rig.journal)
        assert verdict.faults == []
        assert 150 < verdict.facts["most_requests_in_a_minute"] <= 200
        (decided,) = [r for r in rig.requests("POST") if r["body"]["client_order_id"].endswith(".S000.b0")]
        last = max(r["arrived"] for r in rig.requests("POST", "/v2/orders"))
        assert last < rig.days[0].open - 120  # before the auction's cutoff
        assert decided["status"] == 200
