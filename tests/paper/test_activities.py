"""Paid dividends, mergers, spin-offs, deposits and withdrawals are booked, without a mismatch or a jump of returns."""

from __future__ import annotations

import dataclasses
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.dashboard.queries import paper_journal, paper_state
from finrl_pod_app.paper.status_view import show_status

from finrl_pod.paper.domain.flows import capital_changes, flow_adjusted, recorded_capital, starting_capital
from finrl_pod.paper.domain.records import AccountActivity, ActionKind, CorporateAction
from finrl_pod.paper.execution.account_trader import AccountTrader
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.capital_flows import capital_flows
from finrl_pod.paper.journal.tax_lots import gains_report
from finrl_pod.paper.monitoring.status import status
from finrl_pod.paper.monitoring.verification import verify
from finrl_pod.paper.runtime.daemon import record_settings
from finrl_pod.paper.settings import PaperConfig, StrategyConfig, TimingSettings, pack
from tests.paper.factories import RotatingStrategy, SimulatedDaemon, config
from tests.paper.test_adoption import books, rebuilt

pytestmark = pytest.mark.slow

DAY = date(2024, 1, 10)
LAST = date(2024, 1, 16)


def daemon(folder: Path, settings: PaperConfig | None = None, **options: Any) -> SimulatedDaemon:
    """A daemon that polls seldom, so that the tests are quick."""
    slow = dataclasses.replace(settings or config(), timing=TimingSettings(poll=900.0))
    return SimulatedDaemon(folder, slow, max_sleep=7200.0, **options)


class BackOffice:
    """Books activities in the simulated account and reports them to the daemon."""

    def __init__(self, sim: SimulatedDaemon) -> None:
        self.sim = sim
        self.booked: list[AccountActivity] = []
        sim.broker.overrides["activities"] = lambda _, after: tuple(a for a in self.booked if a.created > after)

    def book(self, kind: ActionKind, symbol: str = "", quantity: object = 0, cash: object = 0) -> None:
        number = len(self.booked)
        shares = Decimal(str(quantity))
        group = f"{kind} {self.sim.clock.now()}"
        self.booked.append(
            AccountActivity(f"a{number}", kind, symbol, shares, Decimal(str(cash)), self.sim.clock.now(), group)
        )
        self.sim.account._cash += Decimal(str(cash))
        if shares:
            self.sim.account._shares[symbol] = self.sim.account._shares.get(symbol, Decimal(0)) + shares


def critical(sim: SimulatedDaemon) -> list[Any]:
    return [alert for alert in sim.alerts if alert[0] == "critical"]


def own_equity(sim: SimulatedDaemon) -> dict[str, Decimal]:
    return {row.session: Decimal(row.equity) for row in sim.store.rows(schema.equity)}


def test_deposit_is_not_traded_and_changes_no_return(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim = daemon(tmp_path / "a")
    quiet = daemon(tmp_path / "b")
    office = BackOffice(sim)
    for each in (sim, quiet):
        each.day(DAY)
    office.book(ActionKind.TRANSFER, cash=5_000)
    assert verify(sim.store, sim.config, sim.broker, sim.clock).differences == ()  # type: ignore[arg-type]
    for each in (sim, quiet):
        each.day(LAST)
    assert own_equity(sim) == own_equity(quiet)
    assert not critical(sim)
    found = status(sim.store, sim.config)
    assert found.transfers == 5_000
    show_status(found)
    assert "+5,000.00" in capsys.readouterr().out
    assert [message for _, kind, message in sim.alerts if kind == "activity"] == [
        "the broker booked a transfer: +5,000 of external cash"
    ]
    before = books(sim.store)
    rebuilt(sim)
    assert books(sim.store) == before


def test_withdrawal_beyond_the_rest_of_the_account_is_a_flow(tmp_path: Path) -> None:
    """The account has $100,000, the whole capital: equity falls by the withdrawal, and returns do not."""
    sim = daemon(tmp_path / "a")
    quiet = daemon(tmp_path / "b")
    office = BackOffice(sim)
    for each in (sim, quiet):
        record_settings(each.store, each.config, each.clock.now())
        each.day(DAY)
    office.book(ActionKind.TRANSFER, cash=-20_000)
    for each in (sim, quiet):
        each.day(LAST)
    assert not critical(sim)
    marks = own_equity(sim)
    assert float(marks["2024-01-12"] / own_equity(quiet)["2024-01-12"]) == pytest.approx(0.8, abs=2e-3)
    ours, theirs = (paper_state.summary(paper_journal.load(each.journal)) for each in (sim, quiet))
    assert ours.total == pytest.approx(theirs.total, abs=5e-3)  # more invested for a day
    assert ours.max_drawdown == pytest.approx(theirs.max_drawdown, abs=5e-3)
    office.book(ActionKind.TRANSFER, cash=30_000)  # gives back what the run lost
    sim.day(date(2024, 1, 17))
    assert status(sim.store, sim.config).transfers == 10_000
    own = [Decimal(row.cash) for row in sim.store.rows(schema.corporate_actions)]
    assert sum(own) == 0
    assert own[0] < -15_000
    assert not critical(sim)


def test_flow_triggers_no_loss_limit(tmp_path: Path) -> None:
    risk = dataclasses.replace(config().risk, daily_loss=0.06, drawdown=0.1)
    sim = daemon(tmp_path, config(risk=risk))
    office = BackOffice(sim)
    record_settings(sim.store, sim.config, sim.clock.now())
    sim.day(DAY)
    office.book(ActionKind.TRANSFER, cash=-20_000)
    sim.day(LAST)
    assert not critical(sim)
    summary = paper_state.summary(paper_journal.load(sim.journal))
    assert summary.total > -0.05
    assert summary.max_drawdown > -0.05
    assert 75_000 < summary.equity < 85_000


def test_other_capital_is_a_flow(tmp_path: Path) -> None:
    """The config allocates another half of the account, whose limits on losses see no gain and no loss."""
    risk = dataclasses.replace(config().risk, daily_loss=0.06, drawdown=0.1)
    sim = daemon(tmp_path / "a", config(risk=risk, capital=60_000.0))
    quiet = daemon(tmp_path / "b", config(risk=risk, capital=60_000.0))
    for each in (sim, quiet):
        record_settings(each.store, each.config, each.clock.now())
        each.day(DAY)
    for capital in (90_000.0, 30_000.0):
        sim.config = dataclasses.replace(sim.config, capital=capital)
        sim.restart()
        record_settings(sim.store, sim.config, sim.clock.now())
        sim.day(LAST if capital < 60_000 else date(2024, 1, 12))
    quiet.day(LAST)
    assert not critical(sim)
    changes = [amount for _, amount in capital_flows(sim.store)]
    assert changes == [30_000, -60_000]
    ours, theirs = (paper_state.summary(paper_journal.load(each.journal)) for each in (sim, quiet))
    assert ours.total == pytest.approx(theirs.total, abs=5e-3)
    assert 25_000 < ours.equity < 35_000


def test_capital_of_a_strategy_is_recorded_with_the_settings() -> None:
    strategies = tuple(StrategyConfig(name, strategy="equal_weight", share=0.5) for name in ("a", "b"))
    one = config(strategy="", capital=100.0, strategies=strategies)
    other = dataclasses.replace(one, capital=300.0)
    settings = [("1", pack(one)), ("2", "{}"), ("3", pack(other)), ("4", pack(other))]
    recorded = recorded_capital(settings, "test/a")
    assert recorded == [("1", 50), ("3", 150), ("4", 150)]
    assert capital_changes(recorded) == [("3", 100)]
    assert (starting_capital(recorded, 300.0), starting_capital([], 300.0)) == (50.0, 300.0)


def test_flows_scale_the_equity_before_them() -> None:
    flows = [("2", Decimal(50)), ("4", Decimal(-60))]
    marks = [("1", Decimal(110)), ("2", Decimal(160)), ("3", Decimal(180)), ("5", Decimal(120))]
    factor = Decimal(160) / 110 * 2 / 3
    expected = [100 * factor, 110 * factor, Decimal(160) * 2 / 3, Decimal(120), Decimal(120)]
    assert [float(x) for x in flow_adjusted(100.0, marks, flows)] == pytest.approx([float(x) for x in expected])


def test_paid_dividend_is_booked_and_no_longer_unpaid(tmp_path: Path) -> None:
    sim = daemon(tmp_path, config(broker=dataclasses.replace(config().broker, kind="alpaca")))
    office = BackOffice(sim)
    dividends = tuple(
        CorporateAction(symbol, ActionKind.CASH_DIVIDEND, symbol, date(2024, 1, 12), cash=Decimal("0.4"))
        for symbol in sim.config.symbols
    )
    sim.broker.overrides["corporate_actions"] = lambda _, symbols, start, end: tuple(
        dividend for dividend in dividends if start <= dividend.ex_date <= end
    )
    sim.account._shares |= dict.fromkeys(sim.config.symbols, Decimal(100))  # external
    sim.day(date(2024, 1, 12))
    unpaid = status(sim.store, sim.config).unpaid_dividends
    assert len(unpaid) == 2
    symbol, amount = unpaid.popitem()
    own = amount / Decimal("0.4")
    assert own > 0
    cash = sim.daemon._c.ledger.cash
    office.book(ActionKind.CASH_DIVIDEND, symbol, cash=Decimal("0.4") * (own + 100))
    sim.daemon._c.reconciler.compare()
    assert sim.daemon._c.ledger.cash - cash == amount
    assert status(sim.store, sim.config).unpaid_dividends == unpaid
    assert gains_report(sim.store).symbols[symbol].dividends == float(amount)
    office.book(ActionKind.CASH_DIVIDEND, symbol, cash=-5)  # a tax, of the shares that are held now
    sim.daemon._c.reconciler.compare()
    held = sim.daemon.trader.positions[symbol]
    assert sim.daemon._c.ledger.cash - cash == amount - 5 * (held / (held + 100))
    assert not critical(sim)


@pytest.mark.parametrize("cash", [0, 4_000], ids=["for shares", "for cash"])
def test_merger_and_spin_off_are_booked(tmp_path: Path, cash: int) -> None:
    """All shares of a symbol are replaced by others or by cash; then a symbol without a price yet is spun off."""
    sim = daemon(tmp_path)
    office = BackOffice(sim)
    sim.day(DAY)
    trader: AccountTrader = sim.daemon.trader
    symbol = next(symbol for symbol, shares in trader.positions.items() if shares)
    held = trader.positions[symbol]
    sim.clock.sleep(60)
    before = trader.cash
    office.book(ActionKind.MERGER, symbol, -held, cash)
    if not cash:
        office.book(ActionKind.MERGER, "NEW", held / 2)
    price = sim.account._prices.last
    sim.account._prices.last = lambda s: price(s) if s in sim.config.symbols else Decimal(7)  # type: ignore
    assert sim.daemon._c.reconciler.compare() == ()
    assert trader.cash - before == cash
    assert trader.positions[symbol] == 0
    gains = gains_report(sim.store)
    if cash:
        proceeds = [gain.proceeds for gain in gains.realised if (gain.symbol, gain.sale) == (symbol, 0)]
        assert float(sum(proceeds)) == pytest.approx(cash)
        return
    assert trader.positions["NEW"] == held / 2
    assert [lot.cost for lot in gains.open_lots if lot.symbol == "NEW"] == [0]
    assert not [lot for lot in gains.open_lots if lot.symbol == symbol]
    assert sim.daemon._c.ledger.closes.prices["NEW"] == 7
    sim.clock.sleep(60)
    office.book(ActionKind.SPIN_OFF, "SPUN", 3)
    assert sim.daemon._c.reconciler.compare() == ()
    assert trader.positions["SPUN"] == 3
    assert not critical(sim)


def test_withdrawal_is_split_over_strategies(tmp_path: Path) -> None:
    parts = (StrategyConfig("one", "x", share=0.5), StrategyConfig("two", "x", share=0.25))
    sim = daemon(tmp_path, config(strategy="", strategies=parts), strategies=[RotatingStrategy(), RotatingStrategy()])
    office = BackOffice(sim)
    record_settings(sim.store, sim.config, sim.clock.now())
    sim.day(DAY)
    office.book(ActionKind.TRANSFER, cash=-30_000)
    sim.day(LAST)
    ledger = sim.daemon._c.ledger
    shares = {row.run: Decimal(row.cash) for row in sim.store.rows(schema.action_parts)}
    assert shares["test/one"] == 2 * shares["test/two"] < 0
    assert sum(book.cash for book in ledger.books.values()) == ledger.cash
    assert not critical(sim)


def test_merger_is_announced_before_the_broker_books_it(tmp_path: Path) -> None:
    sim = daemon(tmp_path)
    merger = CorporateAction("m", ActionKind.MERGER, "BB", date(2024, 1, 10), detail="stock_mergers of BB and NEW")
    sim.broker.overrides["corporate_actions"] = lambda *_: (merger,)
    sim.run_to(datetime.fromisoformat("2024-01-11T22:00+00:00"))
    found = [alert for alert in sim.alerts if alert[1] == "corporate_action"]
    assert [(level, "as soon as the broker books it" in message) for level, _, message in found] == [("warning", True)]
