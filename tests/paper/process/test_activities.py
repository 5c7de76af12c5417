"""Rows 72 and 73 against the real daemon process: what the broker's back office books in the account."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from finrl_pod.fake_alpaca.settings import CorporateAction
from tests.paper.process.harness import DaemonHarness

pytestmark = pytest.mark.slow


def test_activities_are_booked_without_a_mismatch(tmp_path: Path) -> None:
    """A deposit, a withdrawal of more than the rest of the account, a dividend that is paid, and a merger."""
    with DaemonHarness(tmp_path) as harness:
        exchange, days = harness.exchange, harness.days
        payer = exchange.prices.symbols[0]
        exchange.prices.actions = (CorporateAction(payer, days[2].date.isoformat(), "dividend", cash=0.5),)
        harness.start()

        def transfer() -> None:
            for kind, amount in (("CSD", 5_000), ("CSW", -25_000)):
                exchange.book_activities([{"activity_type": kind, "net_amount": amount}], exchange.now)

        paid: list[Decimal] = []
        merged: list[str] = []

        def pay_and_merge() -> None:
            paid.append(exchange.ledger.qty(payer) / 2)
            dividend = {"activity_type": "DIV", "symbol": payer, "net_amount": str(paid[0]), "qty": "1"}
            exchange.book_activities([dividend], exchange.now)
            merged.extend([symbol for symbol in exchange.ledger.holdings if symbol != payer][:2])
            old, new = merged
            shares = exchange.ledger.qty(old)
            exchange.book_activities(
                [
                    {"activity_type": "MA", "symbol": old, "qty": str(-shares), "net_amount": "12.5"},
                    {"activity_type": "MA", "symbol": new, "qty": str(shares / 2)},
                ],
                exchange.now,
            )

        harness.run_until(days[1].close + 600, transfer)
        harness.run_until(days[2].open - 3 * 3600, pay_and_merge)
        harness.run_until(days[3].close + 600, harness.slow_clock)
        assert harness.stop() == 0
        assert not [alert for alert in harness.alerts() if alert.startswith("critical")]
        assert sum(Decimal(unpaid) for (unpaid,) in harness.query("select unpaid from action_parts")) == 0
        rows = harness.query("select kind, symbol, own_change, cash, foreign_cash from corporate_actions order by id")
        booked = [(kind, symbol, *map(Decimal, amounts)) for kind, symbol, *amounts in rows]
        transfers = [row for row in booked if row[0] == "transfer"]
        assert transfers == [("transfer", "", 0, 0, 5_000), ("transfer", "", 0, -10_000, -15_000)]
        assert paid[0] > 0
        assert ("cash_dividend", payer, 0, paid[0], 0) in booked
        (removed, added) = [row for row in booked if row[0] == "merger"]
        assert removed[1::2] == (merged[0], Decimal("12.5"))
        assert added[:3] == ("merger", merged[1], -removed[2] / 2)
