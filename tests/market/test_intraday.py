"""Execution within a session: accounting by hand, benchmark schedules, causality, and sessions of a panel."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from finrl_pod.data.sources.files import read_file
from finrl_pod.errors import ConfigError
from finrl_pod.market.intraday import (
    SCHEDULES,
    AlmgrenChriss,
    IntradaySessions,
    SliceState,
    execute,
    sessions_of,
    simulated_sessions,
    twap,
    vwap,
)
from finrl_pod.settings.multi_agent import IntradayExecutionConfig
from finrl_pod.types import Panel

CONFIG = IntradayExecutionConfig()
FREE = IntradayExecutionConfig(eta=0.0, gamma=0.0, half_spread_bps=0.0, max_participation=1.0)


def intraday_panel(days: int, bars: int, seed: int = 0, drop: int | None = None) -> Panel:
    """A panel of one symbol with `bars` bars a day; `drop` is the index of a day without its last bar."""
    rng = np.random.default_rng(seed)
    start = pd.date_range("2024-01-02", periods=days, freq="B")
    times = np.concatenate(
        [(day + pd.timedelta_range("14:30:00", periods=bars, freq="15min")).to_numpy() for day in start]
    )
    close = 50 * np.exp(0.002 * rng.standard_normal(days * bars).cumsum())[:, None]
    tradable = np.ones((days * bars, 1), bool)
    if drop is not None:
        tradable[drop * bars + bars - 1] = False
    volume = rng.uniform(1e3, 1e4, (days * bars, 1))
    return Panel(
        times.astype("datetime64[ns]"), ("XYZ",), close, tradable, open=close * 0.999, high=close * 1.002,
        low=close * 0.997, volume=volume, bar="15m",
    )  # fmt: skip


def test_shortfall_worked_out_by_hand() -> None:
    """Two bars, half of the order each; impact eta 0.1, gamma 0.2, spread 2 bp, volatility 2%."""
    sessions = IntradaySessions(
        torch.tensor([[100.0, 101.0]]).double(), torch.tensor([[2000.0, 1000.0]]).double(),
        torch.tensor([100.0]).double(), torch.tensor([[0.5, 0.5]]).double(), torch.tensor([4000.0]).double(),
        torch.tensor([0.02]).double(), ("one",),
    )  # fmt: skip
    config = IntradayExecutionConfig(order_share=0.1, eta=0.1, exponent=0.5, gamma=0.2, half_spread_bps=2.0)
    result = execute(sessions, twap, config)
    own = 0.2 * 0.02 * 200 / 4000
    prices = [
        100.0 + 100 * (own / 2 + 0.1 * 0.02 * 0.1**0.5 + 2e-4),
        101.0 + 100 * (own + own / 2 + 0.1 * 0.02 * 0.2**0.5 + 2e-4),
    ]
    expected = sum(200 * (p - 100.0) for p in prices) / (400 * 100.0) * 1e4
    assert float(result.shortfall[0]) == pytest.approx(expected)
    sold = execute(sessions, twap, config, side=-1)
    assert float(sold.shortfall[0]) == pytest.approx(expected - 2 * 0.5 * 100)  # the price rose for the seller


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_completes_its_order_within_the_volume_limit(name: str) -> None:
    sessions = simulated_sessions(40)
    result = execute(sessions, SCHEDULES[name], CONFIG)
    torch.testing.assert_close(result.slices.sum(1), CONFIG.order_share * sessions.daily_volume)
    assert (result.slices >= 0).all()
    limit = CONFIG.max_participation * sessions.volume[:, :-1]
    assert (result.slices[:, :-1] <= limit * (1 + 1e-12)).all()


def test_shapes_of_the_schedules() -> None:
    sessions = simulated_sessions(30)
    even, usual, early = (execute(sessions, s, FREE).slices for s in (twap, vwap, AlmgrenChriss(3.0)))
    torch.testing.assert_close(even, even[:, :1].expand_as(even))
    torch.testing.assert_close(usual / usual.sum(1, keepdim=True), sessions.profile)
    assert (early[:, :5].sum(1) > 1.5 * usual[:, :5].sum(1)).all()
    slow = execute(sessions, AlmgrenChriss(1e-4), FREE).slices
    torch.testing.assert_close(slow, usual, rtol=1e-3, atol=1e-3)


def test_without_costs_volume_weighting_pays_the_usual_average_price() -> None:
    sessions = simulated_sessions(30)
    average = (sessions.price * sessions.profile).sum(1)
    expected = (average / sessions.arrival - 1) * 1e4
    torch.testing.assert_close(execute(sessions, vwap, FREE).shortfall, expected)


@pytest.mark.parametrize("name", SCHEDULES)
def test_slices_depend_on_the_past_alone(name: str) -> None:
    sessions = simulated_sessions(20)
    changed = dataclasses.replace(sessions, price=sessions.price.clone(), volume=sessions.volume.clone())
    changed.price[:, 10:] *= 1.1
    changed.volume[:, 10:] *= 3
    wanted: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    for i, case in enumerate((sessions, changed)):

        def schedule(state: SliceState, i: int = i) -> torch.Tensor:
            shares = SCHEDULES[name](state)
            wanted[i].append(shares)
            return shares

        execute(case, schedule, CONFIG)
    for before, after in zip(wanted[0][:11], wanted[1][:11], strict=True):
        assert torch.equal(before, after)


def test_volume_weighting_costs_less_impact_than_even_slices() -> None:
    sessions = simulated_sessions(400)
    # A purchase and a sale in the same session: the price path cancels.
    usual, even = (sum(execute(sessions, s, CONFIG, side=i).shortfall for i in (1, -1)) for s in (vwap, twap))
    assert (usual < even).double().mean() > 0.8  # type: ignore[union-attr, operator]


def test_sessions_of_a_panel_leave_out_short_days_and_use_earlier_ones() -> None:
    panel = intraday_panel(30, 8, drop=12)
    sessions = sessions_of(panel, "XYZ", history=5)
    assert len(sessions) == 29 - 5
    assert sessions.bars == 8
    assert panel.volume is not None
    volume = np.delete(panel.volume[:, 0].reshape(30, 8), 12, 0)
    np.testing.assert_allclose(sessions.daily_volume, [volume[i - 5 : i].sum(1).mean() for i in range(5, 29)])
    np.testing.assert_allclose(sessions.profile[0], volume[:5].mean(0) / volume[:5].mean(0).sum())
    np.testing.assert_allclose(sessions.volume[0], volume[5])
    torch.testing.assert_close(sessions.profile.sum(1), torch.ones(24).double())


def test_imported_bars_become_sessions(tmp_path: Path) -> None:
    panel = intraday_panel(24, 6)
    assert panel.open is not None
    assert panel.high is not None
    assert panel.low is not None
    assert panel.volume is not None
    columns = {"open": panel.open, "high": panel.high, "low": panel.low, "close": panel.close, "volume": panel.volume}
    table = pd.DataFrame({"time": panel.times, "symbol": "XYZ", **{name: x[:, 0] for name, x in columns.items()}})
    table.to_csv(tmp_path / "minutes.csv", index=False)
    imported = sessions_of(read_file(tmp_path / "minutes.csv", bar="15m"), "XYZ")
    expected = sessions_of(panel, "XYZ")
    torch.testing.assert_close(imported.price, expected.price)
    torch.testing.assert_close(imported.volume, expected.volume)
    assert imported.dates == expected.dates


def test_unsuitable_panels_are_refused() -> None:
    panel = intraday_panel(8, 4)
    with pytest.raises(ConfigError, match="no symbol 'ABC'"):
        sessions_of(panel, "ABC")
    with pytest.raises(ConfigError, match="more than 20 are needed"):
        sessions_of(panel, "XYZ")
    with pytest.raises(ConfigError, match="open and volume"):
        sessions_of(dataclasses.replace(panel, volume=None), "XYZ")
    with pytest.raises(ConfigError, match="several bars a day"):
        sessions_of(intraday_panel(30, 1), "XYZ")
