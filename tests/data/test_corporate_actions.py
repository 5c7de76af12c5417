"""Corporate actions: tables, adjusted prices, and returns with dividends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.data.panel import between, make_panel
from finrl_pod.data.side_tables import (
    CorporateAction,
    read_actions,
    with_actions,
    with_dividends_reinvested,
)
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError
from finrl_pod.types import Floats, Panel

BARS = 60
DAYS = pd.bdate_range("2020-01-01", periods=BARS)


def as_traded(seed: int = 0, splits: dict[int, float] | None = None, gap: bool = False) -> Panel:
    """Two tickers as traded; splits: of the first ticker by bar. gap: the first ticker misses bar 30."""
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.02, (BARS, 2)), 0))
    for bar, ratio in (splits or {}).items():
        close[bar:, 0] /= ratio
    if gap:
        close[30, 0] = np.nan
    columns = {"close": close, "open": close * rng.uniform(0.99, 1.01, close.shape), "volume": np.full((BARS, 2), 1e6)}
    return make_panel(DAYS.to_numpy(), ("A", "B"), columns, name="two", adjusted=False, allow_gaps=gap)


def held(panel: Panel, symbol: int) -> Floats:
    """Growth of one share bought at the first close, dividends reinvested at the close of their bar: a plain loop."""
    dividend = np.zeros_like(panel.close) if panel.dividend is None else panel.dividend
    shares, worth = 1.0, []
    for t in range(len(panel.times)):
        if panel.tradable[t, symbol]:
            if t:
                shares += shares * dividend[t, symbol] / panel.close[t, symbol]
            worth.append(shares * panel.close[t, symbol])
    return np.array(worth) / worth[0]


def test_a_split_rescales_the_prices_volumes_and_dividends_before_it() -> None:
    panel = as_traded(splits={40: 4.0})
    actions = [CorporateAction("A", DAYS[40], split=4.0), CorporateAction("A", DAYS[10], dividend=1.0)]
    done = with_actions(panel, actions)
    assert done.volume is not None
    assert panel.volume is not None
    assert done.dividend is not None
    np.testing.assert_allclose(done.close[:40, 0], panel.close[:40, 0] / 4)
    np.testing.assert_array_equal(done.close[40:], panel.close[40:])
    np.testing.assert_array_equal(done.close[:, 1], panel.close[:, 1])
    np.testing.assert_allclose(done.close[:, 0] * done.volume[:, 0], panel.close[:, 0] * panel.volume[:, 0])
    assert done.dividend[10, 0] == pytest.approx(0.25)
    assert done.dividend.sum() == pytest.approx(0.25)
    assert not done.adjusted
    assert done.flaws[-1] == "Then adjusted for the splits in its table of actions; dividends are paid in cash."
    assert not [flaw for flaw in done.flaws if "likely a 4:1 split" in flaw]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    dividends=st.dictionaries(st.integers(1, BARS - 1), st.floats(0.01, 0.5), min_size=1, max_size=6),
    splits=st.dictionaries(st.integers(1, BARS - 1), st.sampled_from([2.0, 3.0, 0.1]), max_size=2),
)
def test_returns_with_dividends_reinvested_are_those_of_adjusted_prices(
    seed: int, dividends: dict[int, float], splits: dict[int, float]
) -> None:
    """Adjusted prices reinvest at the close before the ex-date, a holder at that of the ex-date."""
    panel = as_traded(seed, splits)
    actions = [CorporateAction("A", DAYS[bar], dividend=paid) for bar, paid in dividends.items()]
    actions += [CorporateAction("A", DAYS[bar], split=ratio) for bar, ratio in splits.items()]
    cash = with_actions(panel, actions)
    adjusted = with_actions(panel, actions, "reinvested")
    assert adjusted.adjusted
    assert adjusted.dividend is None
    ratio = adjusted.close[:, 0] / adjusted.close[0, 0]
    grown = held(cash, 0)
    # Each dividend of yield y moves the two apart by y times the return of the ex-date, at most.
    assert cash.dividend is not None
    yields = np.sum(cash.dividend[1:, 0] / cash.close[:-1, 0])
    np.testing.assert_allclose(np.log(ratio), np.log(grown), atol=0.15 * yields + 1e-12)
    np.testing.assert_allclose(adjusted.close[-1], panel.close[-1])


def test_the_factor_of_a_dividend_is_that_of_crsp() -> None:
    panel = as_traded()
    done = with_actions(panel, [CorporateAction("B", DAYS[20], dividend=2.0)], "reinvested")
    factor = 1 - 2.0 / panel.close[19, 1]
    np.testing.assert_allclose(done.close[:20, 1], panel.close[:20, 1] * factor)
    np.testing.assert_array_equal(done.close[20:, 1], panel.close[20:, 1])
    assert done.open is not None
    assert panel.open is not None
    np.testing.assert_allclose(done.open[:20, 1], panel.open[:20, 1] * factor)


def test_an_action_takes_effect_on_the_next_bar_of_its_ticker() -> None:
    saturday = pd.Timestamp("2020-01-04")
    panel = as_traded(gap=True)
    actions = [CorporateAction("B", saturday, dividend=1.0), CorporateAction("A", DAYS[30], dividend=2.0)]
    done = with_actions(panel, actions)
    assert done.dividend is not None
    assert done.dividend[list(DAYS).index(pd.Timestamp("2020-01-06")), 1] == 1.0
    assert done.dividend[31, 0] == 2.0
    assert np.isnan(done.dividend[30, 0])
    market = build_market(done, (), (0, BARS - 1))
    assert market.dividends is not None
    assert float(market.dividends[30, 0]) == 2.0
    assert float(market.dividends.sum()) == 3.0


def test_actions_of_other_symbols_and_dates_are_left_out() -> None:
    panel = as_traded()
    elsewhere = [
        CorporateAction("Z", DAYS[5], dividend=1.0),
        CorporateAction("A", DAYS[0], dividend=1.0),
        CorporateAction("A", DAYS[-1] + pd.Timedelta(days=1), split=2.0),
    ]
    with pytest.raises(DataError, match="no action in the table is of a symbol and a date of panel 'two'"):
        with_actions(panel, elsewhere)
    done = with_actions(panel, [*elsewhere, CorporateAction("A", DAYS[5], dividend=1.0)])
    assert done.dividend is not None
    assert done.dividend.sum() == 1.0
    np.testing.assert_array_equal(done.close, panel.close)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: (dataclasses.replace(p, adjusted=True), CorporateAction("A", DAYS[5], dividend=1.0)), "already"),
        (lambda p: (p, CorporateAction("A", DAYS[5], split=4.0)), "seem to be adjusted for splits already"),
        (lambda p: (p, CorporateAction("A", DAYS[5], dividend=500.0)), "below the close before"),
    ],
)
def test_actions_that_the_prices_deny_are_refused(
    change: Callable[[Panel], tuple[Panel, CorporateAction]], message: str
) -> None:
    panel, action = change(as_traded())
    with pytest.raises(DataError, match=message):
        with_actions(panel, [action])


def test_two_splits_on_one_bar_are_refused() -> None:
    panel = as_traded(splits={40: 4.0})
    twice = [CorporateAction("A", DAYS[40], split=4.0), CorporateAction("A", DAYS[40], split=4.0)]
    with pytest.raises(DataError, match="two splits on 2020-02-26; combine them"):
        with_actions(panel, twice)


def test_tables_are_read_as_yfinance_and_people_write_them(tmp_path: Path) -> None:
    file = tmp_path / "actions.csv"
    file.write_text(
        "Date,Ticker,Dividends,Stock Splits\n2020-08-07 00:00:00-04:00,AAPL,0.82,0.0\n2020-08-31,AAPL,0.0,4.0\n"
        "2020-09-01,AAPL,,\n"
    )
    assert read_actions(file) == [
        CorporateAction("AAPL", pd.Timestamp("2020-08-07"), 1.0, 0.82),
        CorporateAction("AAPL", pd.Timestamp("2020-08-31"), 4.0, 0.0),
    ]
    file.write_text("symbol,date,split\nX,2020-01-02,3:2\nX,2021-01-04,1/10\n")
    assert [action.split for action in read_actions(file)] == [1.5, 0.1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("symbol,date\nA,2020-01-02\n", "must have the columns symbol, date, and split or dividend"),
        ("symbol,date,split\nA,2020-01-02,-4\n", "line 2: a split is new shares per old one"),
        ("symbol,date,split\nA,2020-01-02,4:0\n", "line 2: a split"),
        ("symbol,date,dividend\nA,2020-01-02,-1\n", "line 2: a dividend is cash per share"),
        ("symbol,date,dividend\nA,2020-01-02,inf\n", "line 2: a dividend is cash per share"),
        ("symbol,date,dividend\nA,soon,1\n", "line 2: the date must be a date"),
        ("symbol,date,dividend\n,2020-01-02,1\n", "line 2: the symbol is missing"),
        ("symbol,date,dividend\nA,2020-01-02,0\n", "has no action"),
    ],
)
def test_bad_tables_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "actions.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        read_actions(file)


def test_dividends_are_stored_and_belong_to_the_hash(tmp_path: Path) -> None:
    panel = with_actions(as_traded(), [CorporateAction("A", DAYS[20], dividend=1.0)])
    store = Store(tmp_path)
    store.save(panel)
    again = store.load("two")
    assert again.sha256 == panel.sha256 != dataclasses.replace(panel, dividend=None).sha256
    assert again.dividend is not None
    assert again.dividend[20, 0] == 1.0
    part = between(again, str(DAYS[15].date()), None)
    assert part.dividend is not None
    assert part.dividend[5, 0] == 1.0


def test_dividends_beside_adjusted_prices_are_refused() -> None:
    columns = {"close": np.full((5, 1), 10.0), "dividend": np.full((5, 1), np.nan)}
    with pytest.raises(DataError, match="must not pay them too"):
        make_panel(DAYS[:5].to_numpy(), ("A",), columns)
    panel = make_panel(DAYS[:5].to_numpy(), ("A",), columns, adjusted=False)
    assert panel.dividend is not None
    assert not panel.dividend.any()


def test_a_panel_without_dividends_becomes_adjusted_by_splits_alone() -> None:
    panel = with_actions(as_traded(splits={40: 2.0}), [CorporateAction("A", DAYS[40], split=2.0)])
    assert panel.dividend is None
    np.testing.assert_array_equal(with_dividends_reinvested(panel).close, panel.close)
