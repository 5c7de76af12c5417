"""Membership tables: what is read, what can be bought when, and how a position ends when its ticker leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_envs.trading_envs import PortfolioEnv
from finrl_pod_strategies.baselines import EqualWeight

from finrl_pod.data import features
from finrl_pod.data.panel import between, make_panel, select
from finrl_pod.data.side_tables import Spell, read_membership, with_membership
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError
from finrl_pod.evaluate.backtest import backtest, window_at
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import Floats, Panel, Positions, Window

BARS = 60
DAYS = pd.date_range("2020-01-01", periods=BARS, freq="D")
FREE = ExecutionRules(cost_rate=0.0)


def prices() -> Panel:
    close = 100 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.02, (BARS, 3)), 0))
    return make_panel(DAYS.to_numpy(), ("A", "B", "C"), {"close": close, "open": close * 0.99}, name="three")


def members() -> Panel:
    """A always; B leaves on bar 20 (its last) and rejoins on bar 40; C joins on bar 30."""
    spells = [
        Spell("A", DAYS[0], None),
        Spell("B", DAYS[0], DAYS[20]),
        Spell("B", DAYS[40], None),
        Spell("C", DAYS[30], None),
        Spell("Z", DAYS[0], None),
    ]
    return with_membership(prices(), spells)


class AllInB:
    name, feature_names = "all in B", ()

    def __init__(self) -> None:
        self.windows: list[Window] = []

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        self.windows.append(window)
        return np.array([0.0, 1.0, 0.0]) if window.tradable[-1, 1] and not positions.weights.any() else None


def test_only_members_can_be_bought_and_earlier_prices_stay_known() -> None:
    panel = members()
    np.testing.assert_array_equal(panel.investable.sum(1), [2] * 21 + [1] * 9 + [2] * 10 + [3] * 20)
    market = build_market(panel, ("return_21", "return_21_rank"), (0, BARS - 1))
    np.testing.assert_array_equal(market.tradable.numpy(), panel.investable)
    raw = market.raw_features.numpy()
    assert np.isfinite(raw[30, 2, 0])  # C's first bar as a member: its prices before are used
    assert np.isnan(raw[29, 2]).all()
    ranks = raw[25, :, 1]
    assert np.isfinite(ranks).tolist() == [True, False, False]
    expected = features.compute(select(prices(), ("A", "C")), ("return_21_rank",))[35, :, 0]
    np.testing.assert_allclose(raw[35, [0, 2], 1], expected)  # ranked among members alone
    window = window_at(panel, 30)
    assert np.isfinite(window.close).all()
    assert window.tradable[-1].tolist() == [True, False, True]


def test_a_position_is_sold_at_its_last_close_as_a_member() -> None:
    panel, whole = members(), prices()
    market = build_market(panel, (), (0, BARS - 1))
    result = backtest(AllInB(), panel, MarketPeriod(market, 0, BARS - 1, FREE, 100.0))
    open_, close = whole.open, whole.close
    assert open_ is not None
    shares = 100 / max(close[0, 1], open_[1, 1])  # sized at the close, at most what the cash buys
    first = 100 + shares * (close[20, 1] - open_[1, 1])
    assert result.equity[20] == pytest.approx(first)
    np.testing.assert_allclose(result.equity[21:41], first)
    assert (result.weights[21:41] == 0).all()
    shares = first / max(close[40, 1], open_[41, 1])
    assert result.equity[-1] == pytest.approx(first + shares * (close[-1, 1] - open_[41, 1]))


def test_environments_sell_what_leaves() -> None:
    rules = EnvironmentConfig(envs=1, group=1, window=BARS - 2, cost_bps=0)
    env = PortfolioEnv(build_market(members(), (), (0, BARS - 1)), rules, dtype=torch.float64)
    env.reset(0, stagger=False)
    wanted = torch.tensor([[[-50.0, 50.0, -50.0, -50.0]]], dtype=torch.float64)  # scores of A, B, C and cash
    for _ in range(20):
        env.step(wanted)
    assert env.state is not None
    assert float(env.state.shares[..., 1].sum()) > 0
    env.step(wanted)
    env.step(wanted)
    assert env.state is not None
    assert float(env.state.shares[..., 1].abs().sum()) == 0


def test_equal_weight_holds_members_alone() -> None:
    panel = members()
    result = backtest(
        EqualWeight(), panel, MarketPeriod(build_market(panel, (), (0, BARS - 1)), 0, BARS - 1, FREE, 100.0)
    )
    held = result.weights > 0
    assert (held[1:] <= panel.investable[1:]).all()
    assert held[45].tolist() == [True, False, True]  # as of the first of February


def test_panels_keep_members_when_stored_and_cut(tmp_path: Path) -> None:
    panel = members()
    Store(tmp_path).save(panel)
    loaded = Store(tmp_path).load("three")
    np.testing.assert_array_equal(loaded.members, panel.members)
    assert loaded.sha256 == panel.sha256 != prices().sha256
    cut = select(between(panel, "2020-01-11", "2020-02-05"), ("C", "A"))
    assert cut.members is not None
    np.testing.assert_array_equal(cut.members, panel.members[10:36][:, [2, 0]])  # type: ignore[index]


@pytest.mark.slow
def test_a_file_is_read_and_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    pd.DataFrame(prices().close, DAYS, ["A", "B", "C"]).to_csv(tmp_path / "prices.csv", index_label="time")
    table = tmp_path / "members.csv"
    table.write_text("Ticker,start,end\nA,2020-01-01,\nB,2020-01-01,2020-01-21\nC,2020-01-31,\n")
    second = read_membership(table)[1]
    assert (second.symbol, str(second.first.date()), str(second.last)[:19]) == (
        "B",
        "2020-01-01",
        "2020-01-21 23:59:59",
    )
    assert run(["data", "import", str(tmp_path / "prices.csv"), "--name", "mine", "--members", str(table)]) == 0
    loaded = Store().load("mine")
    assert loaded.investable.sum(1)[[0, 25, 40]].tolist() == [2, 1, 2]
    assert run(["audit", "--strategy", "equal_weight", "--data", "mine"]) in (0, 2)
    capsys.readouterr()
    assert run(["backtest", "--strategy", "equal_weight", "--data", "mine", "--execution", "paper"]) == 2
    assert "membership table" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("symbol,from\nA,2020-01-01\n", "no column 'to'"),
        ("symbol,from,to\nA,soon,\n", "line 2"),
        ("symbol,from,to\nA,2020-02-01,2020-01-01\n", "leaves on 2020-01-01, before it joins"),
        ("symbol,from,to\n", "has no rows"),
    ],
)
def test_invalid_tables_name_the_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "members.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        read_membership(file)


def test_tables_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        read_membership(tmp_path / "none.csv")
    with pytest.raises(DataError, match="B of panel 'three' is not in the membership table, nor are 1 more"):
        with_membership(prices(), [Spell("A", DAYS[0], None)])
    with pytest.raises(DataError, match="is a member on any of its bars"):
        with_membership(
            prices(), [Spell(s, DAYS[0] - pd.Timedelta(days=9), DAYS[0] - pd.Timedelta(days=2)) for s in "ABC"]
        )
