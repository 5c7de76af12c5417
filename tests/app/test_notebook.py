"""The Python API: prices from frames, results that show, plot, save and load themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.api.results import AuditResult
from finrl_pod_app.evaluation import audit

import finrl_pod as fp
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError, DataError, InputError, RunError
from finrl_pod.settings.algorithm_configs import AnalyticConfig
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


def fields() -> pd.DataFrame:
    """As yfinance returns prices: (field, ticker)."""
    parts = {"Close": frame(), "High": frame() * 1.1, "Low": frame() * 0.9, "Open": frame(), "Volume": frame()}
    return pd.concat(parts, axis=1, names=["Price", "Ticker"]).rename_axis("Date")


def named() -> pd.DataFrame:
    """Rows of (date, ticker)."""
    return frame().rename_axis("Date").rename_axis("Ticker", axis=1).stack().rename("Close").to_frame()


@pytest.mark.parametrize(
    "given",
    [
        frame().rename_axis("Date").reset_index(),
        frame().set_axis(DAYS.astype(str)),
        frame().set_axis([day.date() for day in DAYS]),
        frame().sample(frac=1, random_state=0),
        named(),
        named().rename_axis([None, None]).swaplevel(),
        named().reset_index(),
        named().reset_index("Ticker"),
        named().rename(columns={"Close": "Adj Close"}).reset_index(),
        fields()[["Close"]],
        fields()[["Close"]].swaplevel(axis=1).tz_localize("America/New_York"),
    ],
)
def test_frames_of_any_shape_give_the_same_closes(given: pd.DataFrame) -> None:
    panel = fp.load_prices(given)
    assert set(panel.symbols) == set(frame().columns)
    np.testing.assert_array_equal(panel.close, frame()[list(panel.symbols)].to_numpy())
    np.testing.assert_array_equal(panel.times, DAYS.to_numpy())


def test_frames_of_yfinance_keep_all_fields_and_name_tickers_without_prices() -> None:
    prices = fields()
    prices.loc[:, prices.columns.get_level_values(1) == "AAA"] = np.nan
    panel = fp.load_prices(prices)
    assert panel.symbols == ("CCC", "BBB")
    assert panel.columns == ("open", "high", "low", "close", "volume")
    assert "Tickers without any price were left out: AAA." in panel.flaws
    assert "AAA has no bar at all and is never tradable." in fp.load_prices(frame().assign(AAA=np.nan)).flaws


def text_cell(column: int, prices: pd.DataFrame) -> pd.DataFrame:
    wrong = prices.astype(object)
    wrong.iloc[2, column] = "x"
    return wrong


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (text_cell(1, frame()), r"row 3 \(2015-01-05\): AAA must be a number such as 12.5, got 'x'"),
        (
            text_cell(2, named().reset_index()),
            r"row 3 \(2015-01-01, BBB\): Close must be a number such as 12.5, got 'x'",
        ),
        (text_cell(1, fields()), r"row 3 \(2015-01-05\), AAA: Close must be a number such as 12.5, got 'x'"),
        (frame().set_axis(["A", "A", "B"], axis=1), "the DataFrame has the column 'A' twice"),
        (frame()["AAA"], "source must be a panel, .* got an object of the type Series"),
        (frame().to_numpy(), "source must be a panel, .* got an object of the type ndarray"),
        ({"AAA": [1]}, r"source must be a panel, .* got {'AAA': \[1\]}"),
        (None, "source must be a panel, .* got None"),
        (frame().set_axis(["Open", "Close", "High"], axis=1), r"pass --symbol TICKER \(symbol='TICKER' in Python\)"),
        (named().reset_index().rename(columns={"Close": "Adj Close"}).assign(open=1), "but no 'close'"),
        (pd.concat({"a": fields()}, axis=1), "has 3 levels of column names"),
    ],
)
def test_prices_that_cannot_be_used_are_named(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fp.load_prices(given)


def test_options_and_dates_of_prices_are_checked() -> None:
    for source in (frame(), "sample"):
        with pytest.raises(InputError, match="no option 'allow_gap' for prices; did you mean allow_gaps"):
            fp.load_prices(source, allow_gap=True)
    with pytest.raises(DataError, match="has no bars from 2030-01-01: it covers"):
        fp.load_prices(frame(), start="2030-01-01")
    assert fp.load_prices(frame(), start=date(2016, 1, 1), symbols="AAA").symbols == ("AAA",)  # type: ignore[arg-type]
    assert fp.load_prices(frame().rename(columns={"AAA": "LOW"})).symbols == ("CCC", "LOW", "BBB")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            ({"samples": x}, f"samples must be a whole number{' of at least 1' * (x == 0)}, got")
            for x in ("many", 1.5, None, np.nan, True, 0)
        ),
        *(({"seed": x}, "seed must be a whole number from 0 to 9,223") for x in (-1, 2**70)),
        *(({"seed": x}, "seed must be a whole number or None, got") for x in ("x", 1.5)),
        *(({"threads": x}, "threads must be a whole number from 0 to 1,024") for x in (-1, 2000)),
        ({"threads": "x"}, "threads must be a whole number or None, got 'x'"),
        ({"callback": 3}, "callback must be a function or None, got 3"),
    ],
)
def test_arguments_of_training_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fp.train(market(), **{"samples": 1, "progress": True, **arguments})


@functools.cache
def market() -> fp.Setup:
    return fp.make_market(frame())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: fp.make_market(frame(), {"a": 1}),
            "config must be a RunConfig, a TOML file or a preset .* got {'a': 1}",
        ),
        (lambda: fp.make_market(frame(), "quik"), "no preset 'quik'; did you mean quick"),
        (lambda: fp.make_market(frame()[:60]), "the default settings do not fit the 60 bars of 'frame'"),
        (lambda: fp.run_tournament(None, out="x"), "config must be .* got None"),
        (lambda: fp.run_tournament(out=None), "out must be text or a path, got None"),
        (lambda: fp.judge(None), "run must be text or a path or a TournamentResult, got None"),
        (lambda: fp.audit(3), "an audit takes .* got 3"),
        (lambda: fp.walkforward(out="x", folds="2"), "folds must be a whole number, got '2'"),
        (lambda: fp.walkforward(out="x", seeds=-1), "^seeds must be a whole number of at least 1, got -1"),
        (lambda: fp.load_config(3), "config must be .* got 3"),
        (lambda: fp.load_agent("feats.py"), "there is no saved agent 'feats.py'"),
        (lambda: fp.load_agent("."), "there is no saved agent '.'"),
        (lambda: fp.load_agent(3), "paths must be text or a path, got 3"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def agent() -> fp.TrainedAgent:
    return fp.train(market(), 1_000, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp.run_tournament("quick", frame(), out="x", test="no"), "test must be True or False, got 'no'"),  # type: ignore[arg-type]
        (lambda: fp.run_tournament("quick", out="x", resume=1), "resume must be True or False, got 1"),  # type: ignore[arg-type]
        (lambda: fp.train(market(), 1_000, progress="no"), "progress must be True or False or None, got 'no'"),  # type: ignore[arg-type]
        (lambda: fp.load_prices(frame(), allow_gaps="no"), "allow_gaps must be True or False, got 'no'"),
        (lambda: fp.backtest("equal_weight", frame(), cost_bps="10"), "cost_bps must be a number or None, got '10'"),  # type: ignore[arg-type]
        (lambda: fp.backtest(frame(), "equal_weight"), "the strategy comes first, then the prices"),
        (
            lambda: fp.run_tournament(frame(), out="x"),
            "config must be a RunConfig, .* got an object of the type DataFrame",
        ),  # type: ignore[arg-type]
        (lambda: fp.make_market(frame(), RunConfig(seed="3")), "seed must be a whole number, got '3'"),  # type: ignore[arg-type]
        (lambda: fp.make_market(frame(), RunConfig(agent="ppo")), "agent must be a table of settings, got 'ppo'"),  # type: ignore[arg-type]
        (lambda: fp.make_market(frame(), RunConfig(agent=AnalyticConfig(algorithm="ppo"))), "unknown key agent."),  # type: ignore[arg-type]
        (lambda: agent().save(7), "path must be text or a path, got 7"),  # type: ignore[arg-type]
        (lambda: fp.judge("nowhere"), "there is no folder nowhere"),
    ],
)
def test_wrong_types_are_refused_before_anything_is_spent(call: Callable[[], object], message: str) -> None:
    with pytest.raises(fp.FinrlPodError, match=message):
        call()
    assert not Path("x").exists()


@pytest.mark.slow
def test_agents_are_tested_on_their_own_prices_by_default(tmp_path: Path) -> None:
    trained = agent()
    tested = fp.backtest(trained)
    assert tested.result.symbols == market().panel.symbols
    assert tested.in_sample is None
    seen = fp.backtest(trained, split="train")
    assert seen.in_sample is not None
    assert "on which the agent was trained" in seen._repr_html_()
    assert ", in sample, " in repr(seen)
    path = tmp_path / "one"
    trained.save(path)
    np.testing.assert_array_equal(fp.backtest(str(path), market()).result.equity, tested.result.equity)
    assert repr(fp.load_agent(path)) == "PolicyStrategy('one', one agent, 2 features, base equal_weight)"
    with pytest.raises(InputError, match="one was trained on other prices than the sample"):
        fp.backtest(fp.load_agent(path))


@pytest.mark.slow
def test_stored_prices_never_take_the_place_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path))
    first = fp.run_tournament(small_config(generations=1), frame(), out=tmp_path / "run", test=False, device="cpu")
    fp.audit("equal_weight", frame() * 2)
    names = {manifest.name for manifest in fp.Store().list()} - {"sample", "us74"}
    assert len(names) == 2
    assert "frame" in names
    assert fp.backtest(first).metrics == fp.backtest(first, frame()).metrics
    fp.Store().delete("frame")
    with pytest.raises(DataError, match=r"no longer stored.* or pass them: fp\.backtest"):
        fp.backtest(first)
    assert fp.backtest(first, frame()).split == "validation"  # stores them again
    fp.audit("equal_weight", fp.load_prices(frame(), name="mine"))  # the same prices
    fp.audit("equal_weight", fp.load_prices(frame() * 3, name="mine"))
    with pytest.raises(DataError, match="the store has other prices named 'mine'"):
        fp.audit("equal_weight", fp.load_prices(frame() * 4, name="mine"))


def test_presets_and_files_without_splits_fit_the_prices(tmp_path: Path) -> None:
    assert fp.make_market(frame(), "quick").config.agent == fp.load_config("quick").agent
    assert market().config.agent == fp.load_config("laptop").agent  # as on the command line
    path = tmp_path / "mine.toml"
    path.write_text("seed = 3\n")
    config = fp.make_market(frame(), path).config
    assert (config.seed, config.splits) == (3, market().config.splits)
    assert set(fp.RunConfig().features.names) - set(config.features.names) == {
        "momentum_252_21",
        "momentum_252_21_rank",
    }
    path.write_text('[splits]\ntrain = ["2015-01-01", "2016-01-01"]\nvalidation = ["2016-01-02", "2016-12-31"]\n')
    with pytest.raises(DataError):  # its own splits are kept: test is not in the data
        fp.make_market(frame(), path)


def test_panels_become_frames_again() -> None:
    pd.testing.assert_frame_equal(
        fp.load_prices(frame()).to_frame(), frame(), check_names=False, check_freq=False, check_index_type=False
    )


def test_panels_and_markets_show_themselves_in_one_line() -> None:
    panel = "Panel('frame', symbols CCC, AAA, BBB; 700 bars of 1d, 2015-01-01 to 2017-09-06; columns close; "
    panel += "no opens: orders fill at the next close)"
    assert repr(market().panel) == panel
    assert repr(market()).startswith(f"Setup({panel}; 2 features; bars: train 485, validation 100, test 105; agent")


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
    (tmp_path / "other.json").write_text('{"kind": "verdict"}')
    with pytest.raises(RunError, match="holds no saved backtest"):
        fp.Backtest.load(tmp_path / "other.json")


class Half:
    """Half in the first asset."""

    def target_weights(self, window: object, positions: object) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.array([0.5, 0.0, 0.0])


@pytest.mark.slow
def test_baselines_stand_beside_a_backtest() -> None:
    index, equal = (fp.backtest(name) for name in ("index", "equal_weight"))
    assert list(index.baselines) == ["equal_weight"]
    assert list(equal.baselines) == ["index"]
    assert index.metrics == equal.baselines["index"].metrics
    assert list(index.trades["side"]) == ["buy"]


@pytest.mark.slow
def test_looks_count_only_on_test() -> None:
    spans = {split: fp.backtest(Half(), frame(), split=split) for split in ("train", "validation", "test")}  # type: ignore[arg-type]
    assert [result.looks for result in spans.values()] == [None, None, 1]
    assert spans["train"].result.times[-1] < spans["validation"].result.times[0]
    assert fp.backtest(Half, frame()).split == "validation"
    free, costly = (fp.backtest(Half, frame(), cost_bps=cost).result for cost in (0.0, 30.0))
    assert free.costs.sum() == 0 < costly.costs.sum()
    with pytest.raises(InputError, match="cost_bps must be at least 0"):
        fp.backtest(Half, frame(), cost_bps=-1.0)
    assert fp.backtest("equal_weight", frame(), split="test").looks is None
    with pytest.raises(InputError, match="split must be"):
        fp.backtest("equal_weight", frame(), split="tomorrow")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs a method target_weights"):
        fp.backtest(3, frame())


@pytest.mark.slow
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
    rounded = fp.train(market, 300, progress=False)
    assert repr(rounded) == "TrainedAgent('ppo', samples=512 (300 requested, whole iterations trained))"
    assert type(agent.plot()).__name__ == "Figure"
    agent.save(tmp_path / "one")
    tested = fp.backtest(agent, market)
    loaded = fp.backtest(fp.load_agent(tmp_path / "one"), market)
    np.testing.assert_array_equal(tested.result.equity, loaded.result.equity)
    assert "tensor(" not in capsys.readouterr().err


@pytest.mark.slow
def test_tournament_without_a_test_shows_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    fp.Store().save(small_panel())
    config = small_config(generations=1)
    result = fp.run_tournament(config, out=tmp_path / "run", test=False, device="cpu", progress=False)
    assert result.to_frame().index[0] == "champion"
    assert "not tested, validation Sharpe ratio" in repr(result)
    assert "On the validation split, " in str(result)
    assert str(result).endswith("Not tested: repeat it with resume=True and test=True.")
    assert "on the validation split" in result._repr_html_()
    assert [trace.yaxis for trace in result.plot().data] != []
    with pytest.raises(InputError, match="was not tested"):
        _ = result.promoted
    tested = fp.run_tournament(config, out=tmp_path / "run", resume=True, device="cpu", progress=False)
    assert tested.document["verdict"]["looks"] == 1


@pytest.mark.slow
def test_tournament_audit_and_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    fp.Store().save(small_panel())
    result = fp.run_tournament(small_config(), out=tmp_path / "run", device="cpu", progress=False)
    assert "champion" in result.to_frame().index
    assert type(result.plot()).__name__ == "Figure"
    assert "<table>" in result._repr_html_()
    judged = fp.judge(result)
    assert judged.promoted == result.promoted
    assert set(judged.to_frame().columns) >= {"value", "limit", "passed"}
    assert "<th>Sharpe ratio</th>" in result._repr_html_()
    loaded = fp.load_run(tmp_path / "run")
    assert (loaded.folder, loaded.promoted, repr(loaded)) == (result.folder, result.promoted, repr(result))
    with pytest.raises(RunError):
        fp.load_run(tmp_path / "store")
    assert str(judged).startswith(("Demonstration", "Not promoted.", "Promoted."))
    assert fp.audit(result).folder == tmp_path / "run"
    champion = fp.backtest(result, split="test")
    assert champion.looks == result.document["verdict"]["looks"]  # the tournament's own look
    assert champion.metrics["sharpe"] == pytest.approx(result.to_frame().loc["champion", "sharpe"])
    assert fp.backtest(tmp_path / "run", small_panel()).split == "validation"
    with pytest.raises(InputError, match="the run's own prices"):
        fp.backtest(result, frame())
    assert fp.audit("equal_weight", small_panel()).document == fp.audit("equal_weight", "main").document
    audited = fp.audit("equal_weight", "main")
    assert isinstance(audited, AuditResult)
    assert audited.clean
    assert len(audited.to_frame())
    assert "Audit of equal_weight" in audited._repr_html_()


def test_settings_replace_those_of_the_config() -> None:
    chosen = {"environment.delay": 2, "agent.hidden": (8, 8), "seed": 5}
    config = fp.make_market(frame(), settings=chosen, cost_bps=20).config
    assert (config.environment.delay, config.environment.cost_bps) == (2, 20.0)
    assert (config.agent.hidden, config.seed) == ((8, 8), 5)
    with pytest.raises(ConfigError, match=r"settings: unknown key agent\.hiden; did you mean hidden\?"):
        fp.make_market(frame(), settings={"agent.hiden": (8,)})
    with pytest.raises(InputError, match="settings must be a dict such as"):
        fp.make_market(frame(), settings=["agent.hidden"])  # type: ignore[arg-type]


class Unseeded:
    """Random weights without a seed."""

    def target_weights(self, window: Any, positions: Any) -> Any:
        del window
        return np.random.default_rng().dirichlet(np.ones(len(positions.weights))) / 2


class Constant:
    """A tenth in each asset."""

    def target_weights(self, window: Any, positions: Any) -> Any:
        del window
        return np.full(len(positions.weights), 0.1)


@pytest.mark.slow
def test_parts_of_a_notebook_are_checked() -> None:
    def past(panel: Any) -> Any:
        changes = np.full(panel.close.shape, np.nan)
        changes[5:] = panel.close[5:] / panel.close[:-5] - 1
        return changes

    def future(panel: Any) -> Any:
        return np.roll(panel.close, -1, axis=0) / panel.close

    assert fp.check(past).passed
    assert str(fp.check(past)) == "past keeps the contract of a feature"
    found = fp.check(future)
    assert not found.passed
    assert list(found.to_frame()["rule"]) == ["look-ahead"]
    assert "look-ahead" in found._repr_html_()
    assert fp.check(Constant).passed
    assert list(fp.check(Unseeded).to_frame()["rule"]) == ["repeatable"]
    with pytest.raises(InputError, match="has the methods of no extension"):
        fp.check(dict)
    with pytest.raises(InputError, match="is float, not a function or a class"):
        fp.check(1.5)


@pytest.mark.slow
def test_strategies_of_a_notebook_are_audited() -> None:
    prices = fp.load_prices(frame(), name="audited")
    assert fp.audit(Constant, prices).clean
    found = fp.audit(Unseeded, prices)
    assert not found.clean
    assert "determinism" in found.to_frame().query("status == 'fail'").index.get_level_values("check")


@pytest.mark.slow
def test_an_agent_is_audited_on_its_own_market_and_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = fp.train(fp.make_market(frame(), cost_bps=25), 1)
    given: list[Any] = []
    audit_strategy = audit.audit_strategy
    monkeypatch.setattr(
        audit,
        "audit_strategy",
        lambda *args, **options: (given.append(options["config"]), audit_strategy(*args, **options))[1],
    )
    found = fp.audit(trained)
    assert found.clean
    assert found.document["subject"] == "agent"
    assert given[0].environment.cost_bps == 25
    assert given[0].splits == trained.market.config.splits
    assert Store().load(given[0].data.name).sha256 == trained.market.panel.sha256


def test_functions_in_settings_are_given_by_name() -> None:
    def momentum(panel: Any) -> Any:
        return panel.close

    with pytest.raises(InputError, match=r'settings features\.names: .* give "file\.py:momentum", or register it'):
        fp.make_market(frame(), settings={"features.names": [momentum]})


def test_a_backtest_prints_as_a_table_with_what_it_shows() -> None:
    printed = str(fp.backtest("inverse_volatility", frame())).splitlines()
    assert printed[0].startswith("inverse volatility on the validation split")
    assert [line.split("  ")[0] for line in printed[2:4]] == ["inverse volatility", "equal weight"]
    assert printed[-1].startswith("After costs the mean return of inverse volatility was")
