"""Quoted spreads and sectors of a panel: import, checks, storage, slices, and the spread at each fill."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from finrl_pod.data.panel import between, make_panel, select
from finrl_pod.data.sources.files import read_file
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError
from finrl_pod.types import Floats, Panel
from tests.data.panels import random_panel

BARS = 380  # of `random_panel`, which has gaps, a late listing and a delisting
LONG = """time,symbol,close,spread,sector
2024-01-02,A,2.5,0.001,energy
2024-01-03,A,2.6,0.002,energy
2024-01-02,B,4.5,0.003,banks
2024-01-03,B,4.6,,banks
"""


def with_spreads(seed: int) -> Panel:
    panel = random_panel(seed, bars=BARS)
    spread = np.random.default_rng(seed).uniform(0, 0.01, panel.close.shape)
    spread[~panel.tradable] = np.nan
    return dataclasses.replace(panel, spread=spread)


def test_hash_of_a_panel_without_spreads_and_sectors_is_unchanged() -> None:
    panel = random_panel(3, bars=20)
    assert panel.benchmark is not None
    benchmark = dataclasses.replace(panel.benchmark, name="made index")  # as it was named when the hash was computed
    panel = dataclasses.replace(panel, sectors=None, benchmark=benchmark)
    assert panel.sha256 == "ab0d1a0675339b6658eaee0700b9dbc004aa0f137f413d4e9d24f97cd752e1b4"
    spreads, sectors = (
        dataclasses.replace(panel, spread=np.zeros_like(panel.close)),
        dataclasses.replace(panel, sectors=("x",) * len(panel.symbols)),
    )
    assert len({panel.sha256, spreads.sha256, sectors.sha256}) == 3
    assert dataclasses.replace(sectors, sectors=("y",) * len(panel.symbols)).sha256 != sectors.sha256
    assert dataclasses.replace(spreads, spread=np.full_like(panel.close, 0.01)).sha256 != spreads.sha256


def test_a_long_file_has_spreads_and_sectors(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(LONG)
    panel = read_file(tmp_path / "p.csv")
    assert panel.columns == ("close", "spread")
    assert panel.sectors == ("energy", "banks")
    np.testing.assert_array_equal(panel.spread, [[0.001, 0.003], [0.002, np.nan]])
    assert panel.tradable.all()  # a bar without a spread can trade


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.002,energy", "0.002,banks", "line 3: A has the sectors 'energy' and 'banks'"),
        ("0.002,energy", "0.002,", "line 3: A has no sector: every ticker needs one"),
        ("0.003,", "wide,", "line 4: spread must be a number"),
        ("0.003,", "-0.003,", "line 4: spread of B on 2024-01-02 is -0.003: spreads are fractions of the price"),
        ("0.003,", "21,", "is 21: spreads are fractions of the price, 0 or more and below 1"),
    ],
)
def test_errors_name_their_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "p.csv").write_text(LONG.replace(old, new))
    with pytest.raises(DataError, match=message):
        read_file(tmp_path / "p.csv")


def test_a_wide_file_may_have_a_ticker_named_sector(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("time,SECTOR,SPREAD\n2024-01-02,1,2\n2024-01-03,1,2\n")
    panel = read_file(tmp_path / "p.csv")
    assert panel.symbols == ("SECTOR", "SPREAD")
    assert (panel.sectors, panel.spread) == (None, None)


def test_spreads_and_sectors_are_stored_and_sliced(tmp_path: Path) -> None:
    panel = dataclasses.replace(with_spreads(1), name="mine")
    manifest = Store(tmp_path).save(panel)
    loaded = Store(tmp_path).load("mine")
    assert loaded.sha256 == panel.sha256 == manifest.sha256
    assert loaded.sectors == panel.sectors == Store(tmp_path).show("mine").sectors
    np.testing.assert_array_equal(loaded.spread, panel.spread)
    assert panel.spread is not None
    assert panel.sectors is not None
    last, first = panel.symbols[-1], panel.symbols[0]
    part = between(select(panel, (last, first)), str(panel.times[50])[:10], str(panel.times[59])[:10])
    assert part.sectors == (panel.sectors[-1], panel.sectors[0])
    np.testing.assert_array_equal(part.spread, panel.spread[50:60][:, [len(panel.symbols) - 1, 0]])


def test_every_ticker_needs_one_sector() -> None:
    panel = random_panel(0, bars=20)
    with pytest.raises(DataError, match="has 1 sector: it needs one for each"):
        make_panel(panel.times, panel.symbols, {"close": panel.close}, sectors=("one",), allow_gaps=True)


def expected_half_spread(panel: Panel, fill: str) -> Floats:
    """By a loop over cells: half the spread at the bar of the fill, else the last earlier one, else 0."""
    assert panel.spread is not None
    bars, assets = panel.close.shape
    result = np.zeros((bars, assets))
    for n in range(assets):
        last = 0.0
        for t in range(bars):
            if panel.tradable[t, n]:
                last = panel.spread[t, n] / 2
            result[t, n] = last
            if fill == "next" and t + 1 < bars and panel.tradable[t, n] and panel.tradable[t + 1, n]:
                result[t, n] = panel.spread[t + 1, n] / 2
    return result


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fill", ["next", "same_close"])
def test_the_half_spread_is_that_of_the_bar_of_the_fill(seed: int, fill: str) -> None:
    panel = with_spreads(seed)
    assert not panel.tradable.all()
    market = build_market(panel, (), (0, BARS - 1), fill)  # type: ignore[arg-type]
    assert market.half_spread is not None
    np.testing.assert_array_equal(market.half_spread.numpy(), expected_half_spread(panel, fill))
    assert build_market(dataclasses.replace(panel, spread=None), (), (0, BARS - 1)).half_spread is None
