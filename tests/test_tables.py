"""Tables in memory and in mapped files hold the same numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from finrl_pod_envs import market_env
from finrl_pod_envs.trading_envs import PortfolioEnv

from finrl_pod import tables
from finrl_pod.data import tensor
from finrl_pod.data.panel import make_panel
from finrl_pod.errors import ConfigError, DataError
from finrl_pod.files import ROOT_VARIABLE
from finrl_pod.memory import release_mapped_pages
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.tables import has_nan, mapped_bytes, new_table, rows_table
from finrl_pod.types import MarketTensor, Panel
from tests.mandates import with_random_base
from tests.markets import random_market

BARS, ASSETS = 700, 6
NAMES = ("return_5", "volatility_21", "beta_252")


@pytest.fixture
def panel() -> Panel:
    rng = np.random.default_rng(5)
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.02, (BARS, ASSETS)), 0))
    close[:40, 1] = np.nan
    days = np.busday_offset("2015-01-01", np.arange(BARS), roll="forward").astype("datetime64[ns]")
    return make_panel(days, [f"S{n}" for n in range(ASSETS)], {"close": close})


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Map every table into a file of this folder."""
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    monkeypatch.setattr(tables, "MAPPED_BYTES", 0)
    return tmp_path / tables.FOLDER


def assert_equal(one: MarketTensor, other: MarketTensor) -> None:
    for field in dataclasses.fields(MarketTensor):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        elif isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b, field.name


def test_a_mapped_market_equals_one_in_memory(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = tensor.build_market(panel, NAMES, (0, 499))
    monkeypatch.setattr(tables, "MAPPED_BYTES", 0)
    assert_equal(in_memory, tensor.build_market(panel, NAMES, (0, 499)))


def test_a_mapped_table_keeps_its_numbers_after_its_pages_are_released(mapped: Path) -> None:
    table = new_table((3_000, 7))
    table[:] = np.arange(21_000, dtype=np.float32).reshape(3_000, 7)
    release_mapped_pages()
    np.testing.assert_array_equal(table.ravel(), np.arange(21_000))
    assert list(mapped.iterdir()) == []  # it is mapped: there is a folder, in which the file has no name


def test_tables_that_are_computed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.arange(3_000, dtype=torch.float64).reshape(300, 10)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 7 * 10 * 4)
    calls: list[slice] = []

    def doubled(rows: slice) -> torch.Tensor:
        calls.append(rows)
        return values[rows] * 2

    torch.testing.assert_close(rows_table(doubled, values, torch.float32), (values * 2).float(), rtol=0, atol=0)
    assert [(rows.start, rows.stop) for rows in calls] == [(i, min(i + 7, 300)) for i in range(0, 300, 7)]
    assert not has_nan(values)
    values[299, 9] = torch.nan
    assert has_nan(values)


def test_small_tables_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    assert new_table((10, 3)).shape == (10, 3)
    assert not (tmp_path / tables.FOLDER).exists()


def test_the_size_is_set_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tables.MAPPED_VARIABLE, "5")
    assert mapped_bytes() == 5 * 2**20
    monkeypatch.setenv(tables.MAPPED_VARIABLE, "much")
    with pytest.raises(ConfigError, match="number of MiB"):
        mapped_bytes()


def test_a_folder_that_cannot_be_written_is_named(mapped: Path) -> None:
    mapped.write_text("a file in its place")
    with pytest.raises(DataError, match=r"\.tables.*free space"):
        new_table((10, 3))


@pytest.mark.slow
@pytest.mark.parametrize("base", ["equal_weight", "random"])
def test_environments_on_mapped_tables_equal_those_in_memory(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    market = random_market(3, bars=90, assets=5, spreads=True, dividends=True, ends={1: 40, 2: 70})
    if base == "random":
        market = with_random_base(market, 1)
    config = EnvironmentConfig(
        reward="active_return", half_spread="from data", delisting_return=-0.3, window=60, envs=4, group=2
    )

    def steps() -> list[torch.Tensor]:
        env = PortfolioEnv(market, config, mandate=MandateConfig(base=base))
        env.reset(0)
        generator = torch.Generator().manual_seed(1)
        outcomes = [env.step(torch.randn(1, 4, 5, generator=generator)) for _ in range(70)]
        return [torch.stack(values) for values in zip(*((x.reward, x.equity, x.cost) for x in outcomes), strict=True)]

    in_memory = steps()
    monkeypatch.setattr(tables, "MAPPED_BYTES", 0)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 512)  # some rows a block
    monkeypatch.setattr(market_env, "TABLE_ROWS", 16)
    for one, other in zip(in_memory, steps(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
