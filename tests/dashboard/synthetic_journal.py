"""A journal of two strategies with random trades, dividends, a split, a deposit and a withdrawal, without a daemon."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from finrl_pod.paper.domain.schedule import Calendar
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.ledger import market_value
from finrl_pod.paper.journal.store import Store, stamp
from finrl_pod.paper.runtime.daemon import record_settings
from finrl_pod.paper.settings import BrokerSettings, PaperConfig, StrategyConfig
from tests.paper.factories import config

SYMBOLS = ("AA", "BB", "CC")
SHARES = {"one": 0.6, "two": 0.4}
DEPOSIT, WITHDRAWAL = Decimal(25_000), Decimal(-10_000)
DIVIDEND = Decimal("0.75")  # per share
FEE_RATE = Decimal("0.0007")
ZERO = Decimal(0)


def settings(**changes: object) -> PaperConfig:
    """Config of an account of two strategies."""
    strategies = tuple(StrategyConfig(name, "equal_weight", share=share) for name, share in SHARES.items())
    broker = BrokerSettings(kind="simulated", cost_bps=7.0)
    return config(**{"strategy": "", "strategies": strategies, "broker": broker, **changes})


class SyntheticJournal:
    """Writes one session after the other. Random numbers depend on `seed` only."""

    def __init__(self, path: Path, account: PaperConfig, start: date, seed: int = 0) -> None:
        self.config = account
        self.store = Store.create_or_open(path)
        self.sessions = list(Calendar().sessions(start, start + timedelta(days=400)))
        self._rng = random.Random(seed)
        self._prices = {symbol: Decimal(50 * (n + 1)) for n, symbol in enumerate(SYMBOLS)}
        self._shares: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
        self._cash: dict[str, Decimal] = defaultdict(Decimal)
        self._runs = [f"{account.name}/{part.name}" for part in account.strategies] or [account.name]
        self._order = 0
        self.fee_rate = FEE_RATE
        record_settings(self.store, account, self.sessions[0].open - timedelta(days=1))

    def trade(self, count: int) -> None:
        """Write fills and the equity of the next sessions."""
        for session in self.sessions[:count]:
            with self.store.batch():
                for run in self._runs:
                    for symbol in self._rng.sample(SYMBOLS, 2):
                        self._fill(run, symbol, session.date.isoformat(), session.open)
                self._mark(session.date.isoformat(), session.close + timedelta(minutes=1))
        del self.sessions[:count]

    def book(self, kind: str, symbol: str, amounts: dict[str, tuple[Decimal, Decimal]]) -> None:
        """Write a corporate action of the next session. amounts: shares and cash by run."""
        now = self.sessions[0].open - timedelta(hours=2)
        values = {"symbol": symbol, "ex_date": self.sessions[0].date.isoformat(), "detail": ""}
        changes = {"own_change": sum(a for a, _ in amounts.values()), "cash": sum(b for _, b in amounts.values())}
        with self.store.batch():
            number = self.store.add(
                schema.corporate_actions, now, action_id=f"{kind} {now}", kind=kind, foreign_change="0",
                foreign_cash="0", **values, **{name: str(value) for name, value in changes.items()},
            )  # fmt: skip
            for run, (shares, cash) in amounts.items():
                self._shares[run][symbol] += shares
                self._cash[run] += cash
                row = {"run": run, "own_change": str(shares), "cash": str(cash), "unpaid": "0"}
                self.store.add(schema.action_parts, now, action_id=number, **row)

    def transfer(self, amount: Decimal) -> None:
        """Book a deposit or a withdrawal over the strategies."""
        parts = {run: amount * Decimal(str(share)) for run, share in zip(self._runs, SHARES.values(), strict=False)}
        self.book("transfer", "", {run: (ZERO, part) for run, part in parts.items()})

    def dividend(self, symbol: str) -> None:
        """Book a dividend on the shares held."""
        self.book("cash_dividend", symbol, {run: (ZERO, self._shares[run][symbol] * DIVIDEND) for run in self._runs})

    def split(self, symbol: str) -> None:
        """Book a split, two for one, and the last close per new share."""
        now = self.sessions[0].open - timedelta(hours=2)
        self.book("split", symbol, {run: (self._shares[run][symbol], ZERO) for run in self._runs})
        self._prices[symbol] /= 2
        close = self.store.last(schema.closes, schema.closes.c.symbol == symbol)
        self.store.add(schema.closes, now, symbol=symbol, session=close.session, price=str(self._prices[symbol]))

    def _fill(self, run: str, symbol: str, bar: str, now: datetime) -> None:
        self._order += 1
        held = self._shares[run][symbol]
        quantity = Decimal(self._rng.randint(1, 60))
        is_sale = held > quantity and self._rng.random() < 0.5
        price = (self._prices[symbol] * Decimal(str(1 + self._rng.gauss(0, 0.005)))).quantize(Decimal("0.01"))
        fee = (quantity * price * self.fee_rate).quantize(Decimal("0.01"))
        side = "sell" if is_sale else "buy"
        intent = self.store.add(
            schema.intents, now, run=run, bar=bar, symbol=symbol, side=side, quantity=str(quantity),
            time_in_force="opg", type="market", limit_price=None, reference_price=str(self._prices[symbol]),
            opens=stamp(now), deadline=stamp(now), ends=stamp(now),
        )  # fmt: skip
        self.store.add(schema.intent_events, now, intent_id=intent, state="filled", detail="")
        order = self.store.add(
            schema.orders, now, client_order_id=f"order {self._order}", intent_id=intent, attempt=0,
            quantity=str(quantity), time_in_force="opg", type="market", limit_price=None, replaces=None,
        )  # fmt: skip
        self.store.add(
            schema.order_events, now, order_id=order, state="ended", broker_id=f"b{self._order}", status="filled",
            filled=str(quantity), value=str(quantity * price), cancel_requested=0, source="poll", detail="",
        )  # fmt: skip
        self.store.add(
            schema.fills, now, order_id=order, execution_id=f"f{self._order}", quantity=str(quantity),
            cumulative_quantity=str(quantity), price=str(price), fee=str(fee), time=stamp(now), source="poll",
        )  # fmt: skip
        signed = -quantity if is_sale else quantity
        self._shares[run][symbol] += signed
        self._cash[run] -= signed * price + fee

    def _mark(self, session: str, now: datetime) -> None:
        for symbol in SYMBOLS:
            factor = Decimal(str(1 + self._rng.gauss(0.0005, 0.015)))
            self._prices[symbol] = (self._prices[symbol] * factor).quantize(Decimal("0.0001"))
            self.store.add(schema.closes, now, symbol=symbol, session=session, price=str(self._prices[symbol]))
        for run in self._runs:
            name = run.removeprefix(f"{self.config.name}/")
            weights = json.dumps({"AA": 0.3, "BB": 0.5, "CC": 0.1} if name == "one" else {"AA": 0.6, "CC": 0.2})
            self.store.add(
                schema.decisions, now, run=run, bar=session, strategy="equal_weight", feed="synthetic", inputs="{}",
                weights=weights, outcome="orders", detail="{}", state=None,
            )  # fmt: skip
        cash = Decimal(str(self.config.capital)) + sum(self._cash.values())
        equity = cash + sum(market_value(shares, self._prices) for shares in self._shares.values())
        values = {"equity": str(equity), "cash": str(cash), "broker_equity": str(equity)}
        self.store.add(schema.equity, now, session=session, **values)


def write_account(path: Path) -> PaperConfig:
    """Write a journal of 17 sessions in five weeks and two months, and return its config."""
    account = settings()
    journal = SyntheticJournal(path, account, date(2024, 1, 9))
    journal.trade(4)
    journal.transfer(DEPOSIT)
    journal.trade(3)
    journal.dividend("CC")
    journal.trade(2)
    journal.split("BB")
    journal.trade(3)
    journal.transfer(WITHDRAWAL)
    journal.dividend("BB")
    journal.trade(8)
    journal.store.close()
    return account
