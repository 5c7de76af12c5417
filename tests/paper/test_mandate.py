"""Virtual holdings of a mandate in the daemon: the same as in a backtest, whatever happens to the process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_strategies.mandate_account import MandateAccount

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import BrokerError
from finrl_pod.evaluate.paper_backtest import PaperBacktest, backtest_paper
from finrl_pod.paper.execution.decision import Holdings, decide
from finrl_pod.paper.execution.price_check import fetch_checked_prices
from finrl_pod.paper.execution.sizing import sizing_rules
from finrl_pod.paper.journal import schema
from finrl_pod.paper.runtime.replay import replay
from finrl_pod.paper.settings import OrderSettings, PaperConfig, ScheduleSettings, TimingSettings
from finrl_pod.settings.run import MandateConfig
from finrl_pod.types import Floats, Panel, Positions, Window
from tests.paper.factories import FixedSource, RotatingStrategy, SimulatedDaemon, config, prices

YEAR = (date(2023, 1, 3), date(2023, 12, 29))
NAMES = tuple(f"S{n:02d}" for n in range(12))
SLOW = MandateConfig(tilt=0.5, trade_speed=0.05, max_turnover=6.0)


class TiltedStrategy:
    """Tilts equal weight towards the assets with the largest returns of five bars."""

    name, feature_names = "tilted", ()

    def __init__(self, mandate: MandateConfig = SLOW) -> None:
        self.mandate: MandateConfig | None = mandate
        self.account = MandateAccount(mandate, 1.0)
        self.lookback = self.account.lookback

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        scores = 20 * (window.close[-1] / window.close[-6] - 1)
        scores = np.nan_to_num(scores)[None]
        return self.account.target_weights(torch.from_numpy(scores), lambda w: w[0], window, positions)

    def state(self) -> dict[str, Any] | None:
        return self.account.state()

    def restore(self, state: Mapping[str, Any] | None, symbols: Sequence[str]) -> None:
        self.account.restore(state, symbols)


def settings(*, fractional: bool, symbols: Sequence[str] = NAMES) -> PaperConfig:
    orders = OrderSettings(fractional=fractional, collar=0.2)
    return config(
        symbols=tuple(symbols), orders=orders, schedule=ScheduleSettings("open"), timing=TimingSettings(poll=600.0)
    )


def paper_backtest(terms: PaperConfig, panel: Panel, first: date, last: date) -> PaperBacktest:
    days = [str(day) for day in panel.times.astype("datetime64[D]")]
    bars = days.index(str(first)), days.index(str(last))
    market = build_market(panel, (), (0, 10))
    return backtest_paper(TiltedStrategy(), panel, market, *bars, sizing_rules(terms), terms.capital, "open")


def states(sim: SimulatedDaemon) -> list[dict[str, Any] | None]:
    rows = sim.store.rows(schema.decisions)
    return [None if row.state is None else json.loads(row.state)["strategy"] for row in rows]


def shares_bought(tested: PaperBacktest) -> dict[str, Decimal]:
    bought: dict[str, Decimal] = dict.fromkeys(NAMES, Decimal(0))
    for order in tested.orders:
        bought[order.symbol] += order.filled
    return bought


@pytest.mark.slow
def test_whole_shares_end_within_one_share_of_fractions() -> None:
    """A year of daily decisions with 100,000: 5% of a gap is often less than a share."""
    panel = prices(date(2022, 11, 1), YEAR[1], seed=3, symbols=NAMES)
    whole, fractions = (
        np.array([float(n) for n in shares_bought(paper_backtest(settings(fractional=f), panel, *YEAR)).values()])
        for f in (False, True)
    )
    assert np.all(whole == np.round(whole))
    assert np.abs(whole - fractions).max() <= 1.0
    assert whole.min() >= 3  # of shares that cost up to 1,000


@pytest.mark.slow
@pytest.mark.parametrize("fractional", [False, True], ids=["whole shares", "fractions"])
def test_replay_and_backtest_agree_under_a_mandate(tmp_path: Path, fractional: bool) -> None:
    panel = prices(date(2022, 11, 1), date(2023, 3, 1), seed=3, symbols=NAMES)
    terms, first, last = settings(fractional=fractional), date(2023, 1, 3), date(2023, 2, 28)
    tested = paper_backtest(terms, panel, first, last)
    replayed = replay(terms, panel, [FixedSource(TiltedStrategy())], first, last, tmp_path / "j.sqlite")
    assert [equity for _, equity in replayed.equity] == list(tested.equity)
    assert replayed.final_positions == {symbol: n for symbol, n in shares_bought(tested).items() if n}
    assert replayed.orders > 100 if fractional else replayed.orders > 30


@pytest.mark.slow
@pytest.mark.parametrize("event", ["before the orders", "between two orders", "broker fails after the decision"])
def test_interrupted_cycle_neither_loses_nor_repeats_a_step(tmp_path: Path, event: str) -> None:
    class Killed(BaseException):
        """Simulates SIGKILL: the daemon does not catch it."""

    def run(folder: Path, *, interrupted: bool) -> SimulatedDaemon:
        folder.mkdir()
        panel = prices(symbols=NAMES)
        terms = replace(settings(fractional=False), timing=TimingSettings(poll=60.0))
        sim = SimulatedDaemon(folder, terms, TiltedStrategy(), panel)
        sim.day(date(2024, 1, 11))  # holds shares: later orders are steps of the virtual holdings
        orders = sim.store.count(schema.orders)
        calls = 0

        def kill(original: Any, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if event == "between two orders" and calls == 1:
                return original(*arguments)
            sim.broker.overrides.clear()
            raise BrokerError("down") if event.startswith("broker") else Killed

        if interrupted:
            sim.broker.overrides["assets" if event.startswith("broker") else "submit"] = kill
            if event.startswith("broker"):
                sim.day(date(2024, 1, 16))
            else:
                with pytest.raises(Killed):
                    sim.day(date(2024, 1, 16))
                sim.source = FixedSource(TiltedStrategy())  # a new process
                sim.restart()
        sim.day(date(2024, 1, 16))
        assert sim.store.count(schema.orders) > orders
        sim.assert_journal_matches_broker()
        return sim

    undisturbed, disturbed = run(tmp_path / "a", interrupted=False), run(tmp_path / "b", interrupted=True)
    assert states(disturbed) == states(undisturbed)
    assert len([state for state in states(disturbed) if state]) >= 4
    assert disturbed.account.positions() == undisturbed.account.positions()


@pytest.mark.slow
def test_account_without_saved_holdings_starts_from_its_positions(tmp_path: Path) -> None:
    """As after an upgrade, or when a strategy without virtual holdings traded the account before."""
    symbols = ("AA", "BB", "CC")
    sim = SimulatedDaemon(tmp_path, settings(fractional=False, symbols=symbols), RotatingStrategy())
    sim.day(date(2024, 1, 11))
    assert states(sim)[-1] is None
    shares = {p.symbol: float(p.quantity) for p in sim.account.positions()}
    mandate = replace(SLOW, tilt=0.0)
    sim.source = FixedSource(TiltedStrategy(mandate))
    sim.restart()
    sim.day(date(2024, 1, 12))
    row = sim.store.rows(schema.decisions)[-1]
    bar = [str(day) for day in sim.panel.times.astype("datetime64[D]")].index(row.bar)
    values = np.array([shares.get(symbol, 0.0) for symbol in symbols]) * sim.panel.close[bar]
    marks = sim.store.last(schema.equity, schema.equity.c.session == row.bar)
    weights = values / float(marks.equity)
    expected = weights + 0.05 * (1 / 3 - weights)
    assert [json.loads(row.weights)[symbol] for symbol in symbols] == pytest.approx(expected.tolist(), abs=1e-9)
    assert json.loads(row.state)["strategy"]["weights"] == json.loads(row.weights)


def test_restored_holdings_follow_a_change_of_symbols_and_budget() -> None:
    account = MandateAccount(SLOW, 1.0)
    saved = {"time": "2024-01-10T00:00:00.000000000", "weights": {"A": 0.25, "B": 0.75}, "budget": 0.125}
    account.restore(saved, ("B", "C", "A"))
    assert account.state() == {**saved, "weights": {"B": 0.75, "C": 0.0, "A": 0.25}}
    unlimited = MandateAccount(replace(SLOW, max_turnover=0.0), 1.0)
    unlimited.restore(saved, ("A", "B"))
    assert unlimited.state() == {**saved, "budget": None}
    account.restore({**saved, "budget": None}, ("A", "B"))
    assert account.state() == {**saved, "budget": 0.5}  # a month's allowance of 6 a year
    account.restore(None, ("A", "B"))
    assert account.state() is None


@pytest.mark.slow
def test_delisted_holding_is_kept_and_its_proceeds_are_spread_over_the_others(tmp_path: Path) -> None:
    symbols, ends = ("AA", "BB", "CC"), date(2024, 1, 16)
    panel = prices()
    close, tradable = panel.close.copy(), panel.tradable.copy()
    gone = panel.times.astype("datetime64[D]") > np.datetime64(ends)
    close[gone, 2], tradable[gone, 2] = np.nan, False
    strategy = TiltedStrategy(replace(SLOW, max_turnover=0.0))
    delisted = replace(panel, close=close, tradable=tradable)
    sim = SimulatedDaemon(tmp_path, settings(fractional=True, symbols=symbols), strategy, delisted)
    sim.day(date(2024, 1, 19))
    rows = sim.store.rows(schema.decisions)
    before = next(row for row in rows if row.bar == str(ends))
    bars = [row.bar for row in sim.store.rows(schema.intents) if row.symbol == "CC"]
    assert max(bars) <= before.bar  # no order after its last bar
    shares = {p.symbol: p.quantity for p in sim.account.positions()}
    assert shares["CC"] > 0
    ledger = sim.daemon._c.ledger
    closes, cash = ledger.closes.prices, sim.daemon.trader.cash
    equity = cash + sum(shares[symbol] * closes[symbol] for symbol in symbols)
    last = json.loads(rows[-1].weights)
    assert last["CC"] == pytest.approx(float(shares["CC"] * closes["CC"] / equity), rel=0.02)

    # The payout arrives: at the next decision the others hold its share in proportion to their virtual holdings.
    paid = Holdings({**shares, "CC": Decimal(0)}, cash + shares["CC"] * closes["CC"], closes)
    day = date(2024, 1, 19)
    checked = fetch_checked_prices(sim.broker, symbols, day, (), sim.config.data, lambda *_: None)  # type: ignore[arg-type]
    still = TiltedStrategy(MandateConfig(tilt=0.5, trade_speed=1e-9))
    found = decide(still, checked, paid, state=json.loads(rows[-1].state)["strategy"])
    assert found.weights is not None
    bar = [str(d) for d in panel.times.astype("datetime64[D]")].index(rows[-1].bar)
    kept = np.array([last["AA"], last["BB"]]) * (panel.close[bar + 1] / panel.close[bar])[:2]
    assert str(day) == str(panel.times[bar + 1].astype("datetime64[D]"))
    assert found.weights[2] == 0
    assert found.weights[0] / found.weights[1] == pytest.approx(kept[0] / kept[1], rel=1e-6)
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-6)
