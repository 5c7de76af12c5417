"""Validation of panels, flaws that are reported, and selection of tickers and dates."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.data.flaws import SENTENCES_PER_KIND, check, sentences
from finrl_pod.data.panel import between, make_panel, select
from finrl_pod.errors import DataError
from finrl_pod.prices import taken_as
from finrl_pod.types import Benchmark, Floats, Panel

T, N = 12, 3
SYMBOLS = ("AAA", "BBB", "CCC")


def days(count: int = T, first: str = "2020-01-01") -> np.ndarray[Any, np.dtype[np.datetime64]]:
    return np.datetime64(first, "ns") + np.arange(count).astype("timedelta64[D]")


def closes(seed: int = 0, bars: int = T) -> Floats:
    rng = np.random.default_rng(seed)
    return np.asarray(50 * np.exp(np.cumsum(rng.normal(0, 0.01, (bars, N)), axis=0)))


def make(close: Floats | None = None, **options: Any) -> Panel:
    close = closes() if close is None else close
    return make_panel(days(len(close)), SYMBOLS, {"close": close}, **options)


def ohlcv(close: Floats) -> dict[str, Floats]:
    return {"open": close, "high": close + 1, "low": close - 1, "close": close, "volume": np.full_like(close, 100.0)}


def test_a_clean_panel_has_no_flaws_and_copies_its_inputs() -> None:
    close = closes()
    panel = make(close, name="x", source="y")
    assert panel.flaws == ()
    assert panel.tradable.all()
    assert panel.columns == ("close",)
    close[0, 0] = 1.0
    assert panel.close[0, 0] != 1.0


@settings(max_examples=40, deadline=None)
@given(t=st.integers(0, T - 1), n=st.integers(0, N - 1), value=st.sampled_from([0.0, -1.0, np.inf, -np.inf]),
       column=st.sampled_from(["open", "high", "low", "close"]))  # fmt: skip
def test_an_invalid_price_is_refused_with_its_ticker_and_column(t: int, n: int, value: float, column: str) -> None:
    columns = {c: v.copy() for c, v in ohlcv(closes()).items()}
    columns[column][t, n] = value
    with pytest.raises(DataError, match=rf"^cell {t},{n}: {column} of {SYMBOLS[n]} on 2020-01-{t + 1:02d} is "):
        make_panel(days(), SYMBOLS, columns, locate=lambda t, n: f"cell {t},{n}")


def test_zero_volume_is_accepted_and_negative_volume_refused() -> None:
    columns = ohlcv(closes())
    columns["volume"][3, 1] = 0.0
    make_panel(days(), SYMBOLS, columns)
    columns["volume"][3, 1] = -5.0
    with pytest.raises(DataError, match="volume of BBB on 2020-01-04 is -5: volumes must be finite and not negative"):
        make_panel(days(), SYMBOLS, columns)


@settings(max_examples=40, deadline=None)
@given(t=st.integers(1, T - 2), n=st.integers(0, N - 1))
def test_nan_between_listing_and_delisting_is_refused_or_becomes_untradable(t: int, n: int) -> None:
    close = closes()
    close[t, n] = np.nan
    with pytest.raises(DataError, match=rf"{SYMBOLS[n]} has no close on 2020-01-{t + 1:02d}, a gap: .*gaps"):
        make(close)
    panel = make(close, allow_gaps=True)
    assert not panel.tradable[t, n]
    assert panel.tradable.sum() == T * N - 1
    day = f"2020-01-{t + 1:02d}"
    assert panel.flaws == (f"{SYMBOLS[n]} lacks 1 bar inside its life, first on {day}, untradable there.",)


def test_a_panel_says_how_orders_fill() -> None:
    assert repr(make(closes())).endswith("columns close; no opens: orders fill at the next close)")
    assert repr(make_panel(days(), SYMBOLS, ohlcv(closes()))).endswith("; orders fill at the next open)")


def test_a_bar_that_lacks_one_column_is_a_gap() -> None:
    columns = ohlcv(closes())
    columns["open"] = columns["open"].copy()
    columns["open"][0, 2] = np.nan
    with pytest.raises(DataError, match="CCC has no open on 2020-01-01"):
        make_panel(days(), SYMBOLS, columns)
    panel = make_panel(days(), SYMBOLS, columns, allow_gaps=True)
    for column in panel.columns:
        np.testing.assert_array_equal(np.isnan(getattr(panel, column)), ~panel.tradable)


def test_late_listings_and_delistings_are_untradable_and_flagged_not_refused() -> None:
    close = closes()
    close[:4, 0] = np.nan
    close[9:, 1] = np.nan
    panel = make(close)
    np.testing.assert_array_equal(panel.tradable, ~np.isnan(close))
    assert panel.flaws == (
        "AAA starts on 2020-01-05 and is untradable before.",
        "BBB ends early, on 2020-01-09, and is untradable after.",
    )


def test_jumps_above_40_percent_are_flagged_with_ticker_and_date_and_never_repaired() -> None:
    close = np.full((T, N), 10.0)
    close[5:, 0] = 14.1
    close[7:, 1] = 5.9
    close[8:, 2] = 14.0  # exactly 40% is no jump
    panel = make(close)
    np.testing.assert_array_equal(panel.close, close)
    assert [(f.kind, f.symbol, str(f.time)[:10]) for f in check(panel)] == [
        ("jump", "AAA", "2020-01-06"),
        ("jump", "BBB", "2020-01-08"),
    ]
    assert "AAA rises 41% in one bar on 2020-01-06" in panel.flaws[0]
    assert "BBB falls 41% in one bar on 2020-01-08" in panel.flaws[1]


def test_a_jump_over_a_gap_is_measured_from_the_last_known_close() -> None:
    close = np.full((T, N), 10.0)
    close[4:6, 0] = np.nan
    close[6:, 0] = 20.0
    kinds = [f.kind for f in check(make(close, allow_gaps=True))]
    assert kinds == ["jump", "gap"]


def test_an_open_outside_low_and_high_is_flagged() -> None:
    columns = ohlcv(closes())
    columns["open"] = columns["open"].copy()
    columns["open"][2, 1] += 5
    panel = make_panel(days(), SYMBOLS, columns)
    assert [(f.kind, f.symbol) for f in check(panel)] == [("range", "BBB")]


def test_many_flaws_of_a_kind_are_counted() -> None:
    close = np.full((40, N), 10.0)
    close[1::2] = 20.0
    panel = make(close)
    assert len(panel.flaws) == SENTENCES_PER_KIND + 1
    assert "107 more flaws of the kind 'jump'" in panel.flaws[-1]


@pytest.mark.parametrize(("order", "message"), [([0, 1, 1, 2], "appears twice"), ([0, 2, 1, 3], "comes after")])
def test_repeated_or_decreasing_times_are_refused(order: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_panel(days(4)[order], SYMBOLS, {"close": closes(bars=4)})


@pytest.mark.parametrize(
    ("symbols", "columns", "message"),
    [
        (SYMBOLS, {"close": closes(), "vwap": closes()}, "unknown column 'vwap'"),
        (SYMBOLS, {"open": closes()}, "column 'close' is missing"),
        (SYMBOLS, {"close": closes()[:5]}, "must have shape"),
        (("A", "B", "A"), {"close": closes()}, "ticker A appears 2 times"),
        (("A", " ", "B"), {"close": closes()}, "empty name"),
        ((), {"close": closes()[:, :0]}, "there are no prices"),
    ],
)
def test_other_invalid_columns_are_refused_in_one_sentence(
    symbols: tuple[str, ...], columns: dict[str, Floats], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        make_panel(days(), symbols, columns)


def test_an_empty_panel_and_an_unknown_bar_are_refused() -> None:
    with pytest.raises(DataError, match="there are no prices"):
        make_panel(days(0), SYMBOLS, {"close": closes(bars=0)})
    with pytest.raises(DataError, match="bar must be one of"):
        make(bar="5d")


@pytest.mark.parametrize("close", [np.full(T - 1, 1.0), np.r_[np.full(T - 1, 1.0), np.nan]])
def test_a_benchmark_must_have_a_price_at_every_bar(close: Floats) -> None:
    with pytest.raises(DataError, match="benchmark I "):
        make(benchmark=Benchmark("I", close, price_only=True))


def test_check_finds_hard_flaws_in_a_panel_built_without_validation() -> None:
    panel = make()
    close = panel.close.copy()
    close[3, 1], close[4, 2] = np.nan, -1.0
    flaws = check(dataclasses.replace(panel, close=close))
    assert [(f.kind, f.hard, f.symbol) for f in flaws] == [("hole", True, "BBB"), ("price", True, "CCC")]
    assert len(sentences(flaws)) == 2


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    selection=st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True), first=st.integers(0, T - 1), data=st.data()
)
def test_select_and_between_commute_and_keep_all_values(selection: list[str], first: int, data: st.DataObject) -> None:
    last = data.draw(st.integers(first, T - 1))
    close = closes()
    close[:5, 0] = np.nan
    panel = make_panel(days(), SYMBOLS, ohlcv(close), benchmark=Benchmark("I", np.arange(1.0, T + 1), True))
    start, end = str(panel.times[first])[:10], str(panel.times[last])[:10]
    one, two = between(select(panel, selection), start, end), select(between(panel, start, end), selection)
    assert one.sha256 == two.sha256
    assert one.flaws == two.flaws
    columns = [SYMBOLS.index(s) for s in selection]
    for name in panel.columns:
        np.testing.assert_array_equal(getattr(one, name), getattr(panel, name)[first : last + 1][:, columns])
    assert one.benchmark is not None
    np.testing.assert_array_equal(one.benchmark.close, np.arange(first + 1.0, last + 2))


def test_derived_panels_keep_source_flaws_and_recompute_the_others() -> None:
    close = closes()
    close[:4, 0] = np.nan
    panel = make(close, flaws=("Reported by the source.",))
    assert len(panel.flaws) == 2
    assert select(panel, ["BBB"]).flaws == ("Reported by the source.",)
    assert between(panel, "2020-01-05", None).flaws == ("Reported by the source.",)
    assert select(panel, ()) is panel


def test_an_unknown_ticker_is_named_with_similar_ones() -> None:
    with pytest.raises(DataError, match="has no ticker AAB, ZZZ: did you mean AAA"):
        select(make(name="x"), ["AAB", "ZZZ"])
    with pytest.raises(DataError, match="appears 2 times"):
        select(make(), ["AAA", "AAA"])


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ("2021-01-01", "2021-02-01", "has no bars from 2021-01-01 to 2021-02-01: it covers 2020-01-01 to 2020-01-12"),
        ("2020-01-05", "2020-01-04", "swap the dates"),
        ("2020-13-01", None, "start must be a date such as 2020-01-31, got '2020-13-01'"),
        (None, "2020", "end must be a date"),
    ],
)
def test_empty_ranges_and_invalid_dates_are_rejected(start: str, end: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        between(make(), start, end)


def test_a_bare_end_date_includes_the_whole_day_of_intraday_bars() -> None:
    times = np.datetime64("2020-01-01T14:30", "ns") + np.arange(T).astype("timedelta64[h]")
    panel = make_panel(times, SYMBOLS, {"close": closes()}, bar="1h")
    assert len(between(panel, None, "2020-01-01").times) == 10
    assert len(between(panel, None, pd.Timestamp("2020-01-01T15:30")).times) == 2
    assert len(between(panel, "2020-01-01T10:30-05:00", None).times) == T - 1


def test_panel_shows_its_symbols_bars_and_flaws() -> None:
    close = closes()
    close[:3, 1] = np.nan
    index = Benchmark("<S&P>", np.linspace(100, 120, T), price_only=True)
    flaws = tuple(f"Flaw {i}." for i in range(6))
    panel = dataclasses.replace(make(close, name="mine"), benchmark=index, flaws=flaws, source="a file")
    shown = panel._repr_html_()
    for row in (
        "<b>Panel mine</b>",
        "<td>symbols</td><td>3: AAA, BBB, CCC</td>",
        "<td>bars</td><td>12 bars of 1d, 2020-01-01 to 2020-01-12</td>",
        "<td>without a price</td><td>8.3% of all bars and symbols</td>",
        "<td>index</td><td>&lt;S&amp;P&gt;, without dividends</td>",
        "<td>source</td><td>a file</td>",
        "<td>known flaws</td><td>Flaw 0.</td>",
        "<td>Flaw 2.</td></tr><tr><td></td><td>3 more, see Panel.flaws</td>",
    ):
        assert row in shown
    assert "Flaw 3." not in shown
    assert "without a price" not in make()._repr_html_()


def test_panel_draws_each_close_from_its_first_and_the_index() -> None:
    close = closes()
    close[:3, 1] = np.nan
    panel = dataclasses.replace(make(close, name="mine"), benchmark=Benchmark("I", np.linspace(100, 120, T), True))
    figure = panel.plot()
    drawn = {trace.name: trace for trace in figure.data}
    assert list(drawn) == [*SYMBOLS, "index: I"]
    np.testing.assert_allclose(drawn["BBB"].y, close[:, 1] / close[3, 1])
    np.testing.assert_allclose(drawn["index: I"].y, np.linspace(1, 1.2, T))
    assert drawn["index: I"].line.dash == "dot"
    assert figure.layout.title.text == "mine: closes, 12 bars of 1d, 2020-01-01 to 2020-01-12"
    assert list({trace.name: trace for trace in make().plot().data}) == list(SYMBOLS)


def test_a_notebook_shows_whether_the_adjustment_of_prices_was_assumed() -> None:
    assert "<td>adjusted</td><td>for splits" in make()._repr_html_()
    assert "<td>adjusted</td><td>assumed, for splits" in make(flaws=[taken_as(adjusted=True)])._repr_html_()
