"""The next orders of a paper account: the decision of `finrl-pod orders` for the holdings of the journal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.dashboard.queries import paper_journal
from finrl_pod_app.dashboard.queries.paper_next_orders import next_orders
from finrl_pod_app.evaluation.orders import ExplainedRow, OrderOptions, account_orders, run_champion
from finrl_pod_app.prices.stored_prices import load_panel

from finrl_pod.errors import DataError, InputError
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.runtime.daemon import record_settings
from finrl_pod.paper.settings import BrokerSettings, PaperConfig, StrategyConfig
from tests.dashboard.test_pages import texts
from tests.paper.factories import config

pytestmark = pytest.mark.slow


@pytest.fixture
def account(finished: Path, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> PaperConfig:
    """An account of the champion of a run, a baseline and a file, that has decided on the bar before the last."""
    monkeypatch.setenv("FINRL_POD_DATA", str(store))
    symbols = load_panel(run_champion(finished)[1]).symbols
    strategies = (
        StrategyConfig("champion", run=str(finished), share=0.5),
        StrategyConfig("equal", "equal_weight", share=0.3),
        StrategyConfig("own", "own.py:One", share=0.2),
    )
    path = tmp_path / "runs" / "paper" / "own" / "journal.sqlite"
    path.parent.mkdir(parents=True)
    settings = config(
        strategy="",
        strategies=strategies,
        symbols=symbols,
        journal=str(path),
        broker=BrokerSettings("simulated", panel="main"),
    )
    with_journal(settings, "2021-10-27")
    return settings


def with_journal(settings: PaperConfig, bar: str) -> None:
    """Write a journal whose strategies decided on a bar and hold nothing."""
    now = datetime.fromisoformat(f"{bar}T22:00").replace(tzinfo=UTC)
    store = Store.create_or_open(Path(settings.journal))
    record_settings(store, settings, now)
    for name in ("champion", "equal"):
        store.add(
            schema.decisions, now, run=f"test/{name}", bar=bar, strategy=name, feed="f", inputs="{}", weights="{}",
            outcome="orders", detail="{}", state=None,
        )  # fmt: skip
    store.close()


def test_orders_are_those_of_the_command(account: PaperConfig, finished: Path) -> None:
    journal = paper_journal.load(Path(account.journal))
    strategy, run = run_champion(finished)
    panel = load_panel(run)
    options = OrderOptions(cash=50_000.0, date="2021-10-28", whole_shares=True, why=True)
    expected = account_orders(strategy, run, panel, {}, options)
    result = next_orders(journal, "champion", datetime(2021, 10, 28, 22, tzinfo=UTC))
    assert (result.date, result.is_repeated) == ("2021-10-28", False)
    assert result.cash_left == pytest.approx(expected.cash_left)
    shown = {row.symbol: (row.shares, row.score) for row in result.orders.itertuples()}
    rows = {row.symbol: (row.shares, row.score) for row in expected.orders if isinstance(row, ExplainedRow)}
    assert shown == {symbol: pytest.approx(rows[symbol]) for symbol in shown}
    assert {symbol for symbol, (shares, _) in rows.items() if shares} <= set(shown)
    assert all("return_" in why for why in result.orders.why)


def test_a_decision_that_was_taken_is_repeated(account: PaperConfig) -> None:
    journal = paper_journal.load(Path(account.journal))
    result = next_orders(journal, "equal", datetime(2021, 10, 27, 22, tzinfo=UTC))
    assert (result.date, result.is_repeated) == ("2021-10-27", True)
    targets = result.orders.target_weight
    assert targets.tolist() == pytest.approx([1 / len(account.symbols)] * len(account.symbols))
    assert not result.orders.score.notna().any()


def test_code_of_files_is_not_run_and_old_prices_are_refused(account: PaperConfig) -> None:
    journal = paper_journal.load(Path(account.journal))
    now = datetime(2021, 10, 28, 22, tzinfo=UTC)
    with pytest.raises(InputError, match=r"own\.py:One is code of a file"):
        next_orders(journal, "own", now)
    with pytest.raises(InputError, match="is no strategy of the account"):
        next_orders(journal, "other", now)
    with pytest.raises(DataError, match="before the last decision on 2021-10-27"):
        next_orders(journal, "equal", now - timedelta(days=10))


def test_page_shows_the_orders_of_each_strategy(account: PaperConfig, visit: Callable[..., Any]) -> None:
    runs = Path(account.journal).parents[2]
    app = visit("paper", runs, view="Next orders")
    assert not app.exception
    assert not app.error
    assert [header.value for header in app.subheader] == ["champion", "equal", "own"]
    assert len(app.dataframe) == 2
    assert "is code of a file" in "".join(info.value for info in app.info).replace("\\", "")
    assert "already decided" in texts(app)
