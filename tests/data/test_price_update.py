"""Continue a stored panel: factors of corporate actions, universes that change, and prices that are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finrl_pod.data.panel import between, make_panel, select
from finrl_pod.data.price_update import continue_panel
from finrl_pod.data.side_tables import CorporateAction, Dividends, with_actions
from finrl_pod.errors import DataError
from finrl_pod.prices import Benchmark, Floats, Panel

BARS, STORED, FIRST = 60, 50, 44
DAYS = pd.bdate_range("2020-01-01", periods=BARS)


def walk(symbols: str = "ABC", seed: int = 0, decimals: int = 12) -> Floats:
    """Closes [T, N]."""
    rng = np.random.default_rng(seed)
    return np.round(40 * np.exp(np.cumsum(rng.normal(0, 0.01, (BARS, len(symbols))), 0)), decimals)


def panel(symbols: Sequence[str], bars: slice, close: Floats | None = None, **columns: Any) -> Panel:
    """Some bars of a panel of closes and further columns."""
    values = {"close": walk("".join(symbols)) if close is None else close, **columns}
    return make_panel(
        DAYS[bars].to_numpy(), symbols, {k: v[bars] for k, v in values.items()}, name="mine", allow_gaps=True
    )


def test_later_bars_are_appended_and_a_second_update_changes_nothing() -> None:
    whole = panel("ABC", slice(None))
    update = continue_panel(panel("ABC", slice(STORED)), panel("ABC", slice(FIRST, None)))
    assert (update.added_bars, update.joined_symbols, update.ended_symbols, update.price_factors) == (
        BARS - STORED,
        (),
        (),
        {},
    )
    assert update.panel.sha256 == whole.sha256
    again = continue_panel(update.panel, panel("ABC", slice(FIRST, None)))
    assert (again.added_bars, again.panel.sha256) == (0, whole.sha256)


@pytest.mark.parametrize(("factor", "decimals"), [(0.5, 12), (0.5, 2), (10.0, 2), (0.997, 12), (0.997, 2)])
def test_earlier_prices_are_adjusted_by_the_factor_of_common_bars(factor: float, decimals: int) -> None:
    close = walk(decimals=decimals)
    newer = close.copy()
    newer[:, 1] = np.round(newer[:, 1] * factor, decimals)
    update = continue_panel(panel("ABC", slice(STORED), close), panel("ABC", slice(FIRST, None), newer))
    assert list(update.price_factors) == ["B"]
    assert update.price_factors["B"] == pytest.approx(factor, rel=1e-3 if decimals == 2 else 1e-12)
    np.testing.assert_allclose(update.panel.close[:, 1], close[:, 1] * factor, rtol=1e-3)
    np.testing.assert_array_equal(update.panel.close[:, [0, 2]], close[:, [0, 2]])
    again = continue_panel(update.panel, panel("ABC", slice(FIRST, None), newer))
    assert (again.added_bars, again.price_factors, again.panel.sha256) == (0, {}, update.panel.sha256)


@pytest.mark.parametrize("restated", [True, False])
def test_volumes_are_rescaled_where_the_source_restates_them_after_a_split(restated: bool) -> None:
    close = walk("A")
    volume = np.round(np.random.default_rng(1).uniform(1e5, 2e5, close.shape))
    newer_volume = volume * (2 if restated else 1)
    newer_volume[STORED - 1] *= 1.01  # corrected later
    update = continue_panel(
        panel("A", slice(STORED), close, volume=volume),
        panel("A", slice(FIRST, None), close / 2, volume=newer_volume),
    )
    assert update.panel.volume is not None
    np.testing.assert_array_equal(update.panel.volume[:FIRST], volume[:FIRST] * (2 if restated else 1))
    np.testing.assert_array_equal(update.panel.volume[FIRST:], newer_volume[FIRST:])


@pytest.mark.parametrize("dividends", ["cash", "reinvested"])
def test_raw_prices_with_actions_become_those_of_one_import(dividends: Dividends) -> None:
    close = walk("AB")
    close[52:, 0] /= 4
    columns = {"close": close, "open": close * 1.001, "volume": np.full(close.shape, 1e6)}
    actions = [
        CorporateAction("A", DAYS[52], split=4.0),
        CorporateAction("A", DAYS[20], dividend=0.4),
        CorporateAction("A", DAYS[47], dividend=0.4),
        CorporateAction("A", DAYS[55], dividend=0.1),
    ]

    def part(bars: slice) -> Panel:
        raw = make_panel(DAYS[bars], "AB", {k: v[bars] for k, v in columns.items()}, name="mine", adjusted=False)
        return with_actions(raw, actions, dividends, allow_none=True)

    whole = part(slice(None))
    continued = continue_panel(part(slice(STORED)), part(slice(FIRST, None))).panel
    assert continued.columns == whole.columns
    for column in whole.columns:
        np.testing.assert_allclose(getattr(continued, column), getattr(whole, column), err_msg=column)
    assert sum("table of actions" in flaw for flaw in continued.flaws) == 1


def test_symbols_end_and_join_with_dated_membership() -> None:
    close = walk("ABCD")
    close[53:, 1] = np.nan
    update = continue_panel(
        panel("AB", slice(STORED - 5), close[:, [0, 1]]), panel("AC", slice(FIRST - 5, None), close[:, [0, 2]])
    )
    result = update.panel
    assert (result.symbols, update.joined_symbols, update.ended_symbols) == (("A", "B", "C"), ("C",), ("B",))
    assert result.members is not None
    np.testing.assert_array_equal(result.close[: STORED - 5, 1], close[: STORED - 5, 1])
    assert not result.tradable[STORED - 5 :, 1].any()
    assert result.tradable[FIRST - 5 :, 2].all()
    np.testing.assert_array_equal(result.investable[:, 2], np.arange(BARS) >= STORED - 5)
    # A symbol whose bars stop inside the newer prices has ended too; one with a short gap has not.
    last = walk("AB")
    last[[51, 58], [1, 0]] = np.nan
    assert continue_panel(panel("AB", slice(STORED), last), panel("AB", slice(FIRST, None), last)).ended_symbols == ()
    last[STORED + 1 :, 1] = np.nan
    assert continue_panel(panel("AB", slice(STORED), last), panel("AB", slice(FIRST, None), last)).ended_symbols == (
        "B",
    )


def test_a_symbol_that_joins_later_needs_no_membership_and_a_stored_one_continues() -> None:
    close = walk("ABC")
    late = np.where(np.arange(BARS)[:, None] < [0, 52], np.nan, close[:, :2])
    newer = panel("AB", slice(FIRST, None), late)
    assert continue_panel(panel("A", slice(STORED), close[:, :1]), newer).panel.members is None
    members = np.ones((STORED, 2), dtype=bool)
    members[40:, 1] = False
    stored = dataclasses.replace(panel("AB", slice(STORED), close[:, :2]), members=members)
    result = continue_panel(stored, panel("ABC", slice(FIRST, None), close)).panel
    assert result.members is not None
    assert result.members[STORED:].tolist() == [[True, False, True]] * (BARS - STORED)


def test_a_new_name_continues_the_history_of_the_old_one() -> None:
    close = walk("AB")
    update = continue_panel(
        panel("AB", slice(STORED), close), panel(["A", "NEW"], slice(FIRST, None), close * [1, 0.5])
    )
    assert (update.new_names, update.joined_symbols, update.ended_symbols) == ({"B": "NEW"}, ("NEW",), ("B",))
    np.testing.assert_allclose(update.panel.close[:, 2], close[:, 1] * 0.5)
    np.testing.assert_array_equal(update.panel.investable[:, 2], np.arange(BARS) >= STORED)
    np.testing.assert_array_equal(update.panel.close[:STORED, 1], close[:STORED, 1])


def test_an_unfinished_last_bar_and_an_index_are_continued() -> None:
    close = walk("A")
    early = close.copy()
    early[STORED - 1] *= 1.01
    flaw = f"The last bar, {DAYS[STORED - 1].date()}, was not finished when it was fetched."
    index = walk("X")[:, 0]

    def with_index(prices: Panel, bars: slice, scale: float) -> Panel:
        return dataclasses.replace(prices, benchmark=Benchmark("X", index[bars] * scale, True))

    stored = with_index(panel("A", slice(STORED), early), slice(STORED), 1.0)
    newer = with_index(panel("A", slice(FIRST, None), close), slice(FIRST, None), 0.9)
    with pytest.raises(DataError, match=f"close of A on {DAYS[STORED - 1].date()} is"):
        continue_panel(stored, newer)
    update = continue_panel(dataclasses.replace(stored, flaws=(flaw,)), newer)
    assert update.added_bars == BARS - STORED
    assert flaw not in update.panel.flaws
    np.testing.assert_array_equal(update.panel.close, close)
    assert update.panel.benchmark is not None
    np.testing.assert_allclose(update.panel.benchmark.close, index * 0.9)
    with pytest.raises(DataError, match="lack the index X"):
        continue_panel(stored, dataclasses.replace(newer, benchmark=None))


def test_prices_that_cannot_continue_the_stored_ones_are_refused() -> None:
    close = walk("AB")
    stored = panel("AB", slice(STORED), close)
    one_wrong, other_walk = close.copy(), close.copy()
    one_wrong[STORED - 2, 1] *= 1.3
    other_walk[:, 1] = walk("AB", seed=9)[:, 1]
    for newer, message in (
        (panel("AB", slice(FIRST, None), one_wrong), f"close of B on {DAYS[STORED - 2].date()} is .* factor of 1;"),
        (panel("AB", slice(FIRST, None), other_walk), "contradict the stored ones: close of B on"),
        (
            panel("AB", slice(FIRST, STORED - 1), close),
            f"end on {DAYS[STORED - 2].date()}, before the end of the stored",
        ),
        (panel("AB", slice(STORED + 6, None), close), f"of A begin on {DAYS[STORED + 6].date()} and share no bar"),
        (panel("AB", slice(STORED, None), close / 2), f"of A begin on {DAYS[STORED].date()} and share no bar"),
    ):
        with pytest.raises(DataError, match=message):
            continue_panel(stored, newer)
    with pytest.raises(DataError, match="no column 'open'"):
        continue_panel(panel("AB", slice(STORED), close, open=close), panel("AB", slice(FIRST, None), close))
    sectors = dataclasses.replace(select(stored, ["A"]), sectors=("Energy",))
    with pytest.raises(DataError, match="state no sector of B"):
        continue_panel(sectors, panel("AB", slice(FIRST, None), close))


def test_bars_that_follow_are_appended_unchecked() -> None:
    update = continue_panel(panel("ABC", slice(STORED)), panel("ABC", slice(STORED, None)))
    assert (update.added_bars, update.unchecked_symbols) == (BARS - STORED, ("A", "B", "C"))
    assert update.panel.sha256 == panel("ABC", slice(None)).sha256
    assert continue_panel(panel("ABC", slice(STORED)), panel("ABC", slice(FIRST, None))).unchecked_symbols == ()


def test_minute_bars_in_another_zone_are_refused() -> None:
    close = walk("A")
    times = pd.date_range("2020-01-02 14:30", periods=BARS, freq="min")

    def minutes(bars: slice, hours: int) -> Panel:
        moments = (times[bars] + pd.Timedelta(hours=hours)).to_numpy()
        return make_panel(moments, "A", {"close": close[bars]}, bar="1m", name="mine")

    assert continue_panel(minutes(slice(STORED), 0), minutes(slice(FIRST, None), 0)).added_bars == BARS - STORED
    with pytest.raises(DataError, match="check their time zone"):
        continue_panel(minutes(slice(STORED), 0), minutes(slice(FIRST, None), 5))
    with pytest.raises(DataError, match="before the end of the stored"):
        continue_panel(minutes(slice(STORED), 0), minutes(slice(FIRST, None), -5))


def test_older_bars_of_the_newer_prices_are_left_out() -> None:
    whole = panel("AB", slice(None))
    stored = between(whole, str(DAYS[10].date()), str(DAYS[STORED - 1].date()))
    result = continue_panel(stored, whole).panel
    assert result.sha256 == between(whole, str(DAYS[10].date()), None).sha256
