"""The Python API: prices from frames, results that show, plot, save and load themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.notebook_results import AuditResult, TournamentResult, VerdictResult

import finrl_pod as fp
from finrl_pod.errors import DataError, InputError, RunError
from finrl_pod.settings.run import EnvironmentConfig, FeatureConfig, PPOConfig, RunConfig
from tests.app.small_run import small_config, small_panel

DAYS = pd.bdate_range("2015-01-01", periods=700)


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    closes = 50 * np.exp(np.cumsum(rng.normal(0, 0.01, (700, 3)), axis=0))
    return pd.DataFrame(closes, index=DAYS, columns=["CCC", "AAA", "BBB"])


def test_wide_and_long_frames_give_the_same_panel() -> None:
    wide = fp.load_prices(frame())
    assert wide.symbols == ("CCC", "AAA", "BBB")
    np.testing.assert_array_equal(wide.close, frame().to_numpy())
    rows = frame().rename_axis("Date").reset_index().melt("Date", var_name="Symbol", value_name="Close")
    long = fp.load_prices(rows)
    np.testing.assert_array_equal(long.close, wide.close)
    assert fp.load_prices(rows.rename(columns={"Symbol": "Ticker"})).sha256 == long.sha256
    part = fp.load_prices(frame(), symbols=("AAA",), start="2016-01-01")
    assert part.symbols == ("AAA",)
    assert part.times[0] >= np.datetime64("2016-01-01")


def test_frames_without_dates_are_refused() -> None:
    with pytest.raises(DataError, match="needs dates as its index"):
        fp.load_prices(frame().reset_index(drop=True))


def test_backtest_of_constant_growth_shows_it_and_is_saved(tmp_path: Path) -> None:
    closes = pd.DataFrame({"A": 10 * 1.001 ** np.arange(700), "B": 20 * 1.001 ** np.arange(700)}, index=DAYS)
    result = fp.backtest("equal_weight", closes, split="all")
    table = result.to_frame()
    assert table["equity"].iloc[-1] / table["equity"].iloc[1] == pytest.approx(1.001 ** (len(table) - 2), rel=1e-3)
    assert type(result.plot()).__name__ == "Figure"
    assert "<table>" in result._repr_html_()
    assert "split='all'" in repr(result)
    assert result.trades["cost"].sum() == pytest.approx(result.result.costs.sum())
    assert set(result.trades["side"]) <= {"buy", "sell"}
    again = fp.Backtest.load(result.save(tmp_path / "result.json"))
    pd.testing.assert_frame_equal(again.trades, result.trades, check_dtype=False)
    pd.testing.assert_frame_equal(again.to_frame(), table)
    assert again.metrics == pytest.approx(dict(result.metrics), nan_ok=True)
    with pytest.raises(RunError, match="holds no saved verdict"):
        VerdictResult.load(tmp_path / "result.json")


class Half:
    """Half in the first asset."""

    def target_weights(self, window: object, positions: object) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.array([0.5, 0.0, 0.0])


def test_looks_count_only_on_test() -> None:
    spans = {split: fp.backtest(Half(), frame(), split=split) for split in ("train", "validation", "test")}  # type: ignore[arg-type]
    assert [result.looks for result in spans.values()] == [None, None, 1]
    assert spans["train"].result.times[-1] < spans["validation"].result.times[0]
    assert fp.backtest(Half, frame()).split == "validation"
    assert fp.backtest("equal_weight", frame(), split="test").looks is None
    with pytest.raises(InputError, match="split must be"):
        fp.backtest("equal_weight", frame(), split="tomorrow")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs a method target_weights"):
        fp.backtest(3, frame())


def test_agent_is_trained_shown_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = RunConfig(
        features=FeatureConfig(("return_1", "return_5")),
        environment=EnvironmentConfig(envs=16, group=4, window=32),
        agent=PPOConfig(horizon=16, minibatches=4, hidden=(8, 8)),
    )
    market = fp.make_market(frame())
    assert "momentum_252_21" not in market.config.features.names  # does not fit 700 bars
    market = fp.prepare(
        fp.RunConfig(
            splits=market.config.splits,
            features=config.features,
            environment=config.environment,
            agent=config.agent,
        ),
        device="cpu",
        panel=market.panel,
    )
    agent = fp.train(market, 512, progress=False)
    assert list(agent.to_frame().index) == [256, 512]
    assert {"reward", "policy_loss"} <= set(agent.to_frame().columns)
    assert "<table>" in agent._repr_html_()
    assert repr(agent) == "TrainedAgent('ppo', samples=512)"
    assert type(agent.plot()).__name__ == "Figure"
    agent.save(tmp_path / "one")
    tested = fp.backtest(agent, market)
    loaded = fp.backtest(fp.load_agent(tmp_path / "one"), market)
    np.testing.assert_array_equal(tested.result.equity, loaded.result.equity)
    assert "tensor(" not in capsys.readouterr().err


def test_tournament_audit_and_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    fp.Store().save(small_panel())
    result = fp.run_tournament(small_config(), out=tmp_path / "run", device="cpu", progress=False)
    assert "champion" in result.to_frame().index
    assert type(result.plot()).__name__ == "Figure"
    assert "<table>" in result._repr_html_()
    judged = fp.judge(result)
    assert judged.promoted == result.promoted
    assert set(judged.to_frame().columns) >= {"name", "value", "limit", "passed"}
    assert type(judged.plot()).__name__ == "Figure"
    again = TournamentResult.load(result.save(tmp_path / "saved.json"))
    assert again.document == result.document
    with pytest.raises(InputError, match="give the folder"):
        fp.judge(again)
    audited = fp.audit("equal_weight", "main")
    assert isinstance(audited, AuditResult)
    assert audited.clean
    assert len(audited.to_frame())
    assert type(audited.plot()).__name__ == "Figure"
    assert "Audit of equal_weight" in audited._repr_html_()
