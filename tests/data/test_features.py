"""Features: causal, equal to independent formulas; unknown names are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from finrl_pod.data import blocks, features, price_features
from finrl_pod.data.panel import make_panel
from finrl_pod.errors import FeatureError, InputError, SetupError
from finrl_pod.settings.run import FeatureConfig
from finrl_pod.types import Floats, Panel
from tests.data.panels import START, changed_after, panel, random_panel

PANEL = random_panel()
CHANGES = ("perturbed", "permuted", "missing", "filled", "cut")


def value(name: str, source: Panel = PANEL) -> Floats:
    return features.compute(source, (name,))[..., 0]


def own_closes(source: Panel, asset: int) -> pd.Series[float]:
    """A ticker's closes without its gaps, indexed by bar."""
    return pd.Series(source.close[:, asset]).dropna()


def looks_ahead(name: str) -> bool:
    """Whether a change of later bars changes an earlier value; cuts include bars inside gaps and after listings."""
    before = value(name)
    for bar in (105, 300, 361, 400):
        for how in CHANGES:
            after = value(name, changed_after(PANEL, bar, how))
            if not np.array_equal(before[: bar + 1], after[: bar + 1], equal_nan=True):
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", features.names())
def test_no_feature_looks_ahead(name: str) -> None:
    assert np.isfinite(value(name)[:301]).any(), "a feature that is undefined everywhere would prove nothing"
    assert not looks_ahead(name)


def test_looks_ahead_detects_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_FEATURES", dict(features._FEATURES))
    features.register("next_close")(lambda p: np.roll(p.close, -1, axis=0))
    features.register("demeaned")(lambda p: p.close - np.nanmean(p.close, axis=0))
    features.register("alive_later")(lambda p: np.where(p.tradable[-1], 1.0, 0.0) * np.ones_like(p.close))
    assert [looks_ahead(name) for name in ("next_close", "demeaned", "alive_later")] == [True] * 3


@pytest.mark.parametrize("name", features.names())
def test_untradable_cells_are_undefined_and_the_rest_becomes_defined(name: str) -> None:
    values = value(name)
    assert np.isnan(values[~PANEL.tradable]).all()
    assert np.isfinite(values[330:][PANEL.tradable[330:]]).all()


# Each per-ticker feature over the ticker's own closes, computed with pandas.
ORACLES: dict[str, Callable[[Any], Any]] = {
    "return_1": lambda c: np.log(c).diff(),
    "return_21": lambda c: np.log(c / c.shift(21)),
    "return_252": lambda c: np.log(c / c.shift(252)),
    "momentum_126_21": lambda c: np.log(c.shift(21) / c.shift(126)),
    "momentum_252_21": lambda c: np.log(c.shift(21) / c.shift(252)),
    "volatility_21": lambda c: np.log(c).diff().rolling(21).apply(lambda x: np.std(x, ddof=1), raw=True),
    "volatility_252": lambda c: np.log(c).diff().rolling(252).apply(lambda x: np.std(x, ddof=1), raw=True),
    "trend_200": lambda c: np.log(c / c.rolling(200).apply(np.mean, raw=True)),
    "drawdown_252": lambda c: c / c.rolling(252).apply(np.max, raw=True) - 1,
    "close_30_sma": lambda c: c.rolling(30).apply(np.mean, raw=True),
    "close_60_sma": lambda c: c.rolling(60).apply(np.mean, raw=True),
    "boll_ub": lambda c: c.rolling(20).mean() + 2 * c.rolling(20).std(ddof=0),
    "boll_lb": lambda c: c.rolling(20).mean() - 2 * c.rolling(20).std(ddof=0),
}


@pytest.mark.parametrize("name", ORACLES)
def test_ticker_features_equal_pandas(name: str) -> None:
    values = value(name)
    for asset in range(PANEL.close.shape[1]):
        expected = ORACLES[name](own_closes(PANEL, asset)).reindex(range(len(PANEL.times)))
        np.testing.assert_allclose(values[:, asset], expected.to_numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("statistic", ["sum", "mean", "std", "max"])
@pytest.mark.parametrize("bars", [2, 7, 40])
def test_windows_equal_pandas(statistic: Any, bars: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(1e-3, 0.01, (33, 5))
    values[:2, 1] = values[20, 2] = np.nan
    values[4:, 3] = 0.001
    expected = getattr(pd.DataFrame(values).rolling(bars), statistic)().to_numpy()
    np.testing.assert_allclose(price_features.rolling(values, bars, statistic), expected, rtol=1e-9, atol=1e-15)


def test_a_window_depends_on_no_row_before_it() -> None:
    values = np.random.default_rng(0).normal(size=(50, 2))
    changed = values.copy()
    changed[:20] *= 1e9
    for statistic in ("sum", "std"):
        before, after = (price_features.rolling(x, 10, statistic) for x in (values, changed))  # type: ignore[arg-type]
        np.testing.assert_array_equal(before[29:], after[29:])


def test_features_of_a_panel_share_the_market_model(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = []
    fit = price_features._fit
    monkeypatch.setattr(price_features, "_fit", lambda *args, **bars: fits.append(bars) or fit(*args, **bars))
    names = ("beta_252", "idiosyncratic_252", "residual_momentum", "beta_252_rank")
    features.compute(random_panel(5), names)
    assert fits == [{"bars": 252}]


def ema(values: Floats, bars: int, seed_end: int) -> Floats:
    """Exponential mean seeded with the plain mean of the `bars` values that end at `seed_end`."""
    result = np.full(len(values), np.nan)
    result[seed_end] = values[seed_end - bars + 1 : seed_end + 1].mean()
    for t in range(seed_end + 1, len(values)):
        result[t] = result[t - 1] + (values[t] - result[t - 1]) * 2 / (bars + 1)
    return result


def wilder(values: Floats, bars: int) -> Floats:
    """Wilder's smoothing, seeded with the plain mean of values 1 to `bars`."""
    result = np.full(len(values), np.nan)
    result[bars] = values[1 : bars + 1].mean()
    for t in range(bars + 1, len(values)):
        result[t] = (result[t - 1] * (bars - 1) + values[t]) / bars
    return result


def test_macd_and_rsi_equal_plain_loops() -> None:
    macd, rsi = value("macd"), value("rsi_30")
    for asset in range(PANEL.close.shape[1]):
        close = own_closes(PANEL, asset)
        x = np.asarray(close, dtype=np.float64)
        move = np.diff(x, prepend=np.nan)
        line = ema(x, 12, 25)
        line -= ema(x, 26, 25)
        np.testing.assert_allclose(macd[close.index, asset][33:], line[33:], rtol=1e-9, atol=1e-11)
        assert np.isnan(macd[close.index, asset][:33]).all()
        up, down = wilder(np.maximum(move, 0), 30), wilder(np.maximum(-move, 0), 30)
        np.testing.assert_allclose(rsi[close.index, asset], 100 * up / (up + down), rtol=1e-9)


def test_cci_and_dx_equal_plain_loops() -> None:
    assert PANEL.high is not None
    assert PANEL.low is not None
    cci, dx = value("cci_30"), value("dx_30")
    for asset in range(PANEL.close.shape[1]):
        bars = own_closes(PANEL, asset).index.to_numpy()
        high, low, close = PANEL.high[bars, asset], PANEL.low[bars, asset], PANEL.close[bars, asset]
        typical = pd.Series((high + low + close) / 3)
        mean = typical.rolling(30).mean()
        spread = typical.rolling(30).apply(lambda x: np.abs(x - x.mean()).mean(), raw=True)
        np.testing.assert_allclose(cci[bars, asset], (typical - mean) / (0.015 * spread), rtol=1e-7, atol=1e-7)
        # Directional movement with Wilder's sums, which TA-Lib seeds with the first bars - 1 of them.
        rise, fall = np.diff(high), -np.diff(low)
        plus = np.where((rise > fall) & (rise > 0), rise, 0)
        minus = np.where((fall > rise) & (fall > 0), fall, 0)
        p, m, expected = plus[:29].sum(), minus[:29].sum(), np.full(len(bars), np.nan)
        for t in range(29, len(plus)):
            p, m = p - p / 30 + plus[t], m - m / 30 + minus[t]
            expected[t + 1] = 100 * abs(p - m) / (p + m)
        np.testing.assert_allclose(dx[bars, asset], expected, rtol=1e-9)


def test_cross_sections_equal_scipy_bar_by_bar() -> None:
    base, zscores, ranks = value("return_5"), value("return_5_zscore"), value("return_5_rank")
    for t in range(len(PANEL.times)):
        there = np.isfinite(base[t])
        if not there.any():
            assert np.isnan(zscores[t]).all()
            continue
        scores = np.asarray(stats.zscore(base[t, there]), dtype=np.float64)
        np.testing.assert_allclose(zscores[t, there], scores, rtol=1e-9, atol=1e-12)
        places = np.asarray(stats.rankdata(base[t, there]), dtype=np.float64)
        expected = 2 * (places - 1) / (there.sum() - 1) - 1
        np.testing.assert_allclose(ranks[t, there], expected, atol=1e-12)


def test_ties_share_a_rank_and_a_single_value_has_the_middle_rank() -> None:
    nan = np.nan
    rows = np.array([[1.0, 1.0, 3.0, nan], [0.1, 0.1, 0.1, nan], [nan, 5.0, nan, nan]])
    expected = np.array([[-0.5, -0.5, 1.0, nan], [0, 0, 0, nan], [nan, 0, nan, nan]])
    np.testing.assert_allclose(price_features.rank(rows), expected, equal_nan=True)
    np.testing.assert_allclose(price_features.zscore(rows)[1:], expected[1:], equal_nan=True)


@given(arrays.arrays(np.float64, (3, 5), elements=st.floats(-1e6, 1e6) | st.just(np.nan)), st.permutations(range(5)))
def test_cross_sections_are_bounded_and_follow_the_order_of_tickers(rows: Floats, order: list[int]) -> None:
    for statistic in (price_features.zscore, price_features.rank):
        result = statistic(rows)
        assert np.array_equal(np.isnan(result), np.isnan(rows))
        np.testing.assert_allclose(statistic(rows[:, order]), result[:, order], atol=1e-6, equal_nan=True)
        np.testing.assert_allclose(np.nansum(result, 1), 0, atol=1e-6)
    assert np.nanmax(np.abs(price_features.rank(rows)), initial=0.0) <= 1


def test_market_features_equal_a_plain_loop() -> None:
    bars, assets = PANEL.close.shape
    market, breadth = np.full(bars, np.nan), np.full(bars, np.nan)
    own = [own_closes(PANEL, asset) for asset in range(assets)]
    simple = [c.pct_change() for c in own]
    gap = [c - c.rolling(50).mean() for c in own]
    for t in range(bars):
        returns = [s[t] for s in simple if t in s.index and np.isfinite(s[t])]
        above = [g[t] > 0 for g in gap if t in g.index and np.isfinite(g[t])]
        market[t] = np.log1p(np.mean(returns)) if returns else np.nan
        breadth[t] = np.mean(above) if above else np.nan
    expected = {
        "market_return_1": market,
        "market_return_21": pd.Series(market).rolling(21).sum().to_numpy(),
        "market_volatility_21": pd.Series(market).rolling(21).std().to_numpy(),
        "breadth_50": breadth,
    }
    for name, series in expected.items():
        values = value(name)
        np.testing.assert_allclose(values[:, 0], series, rtol=1e-9, atol=1e-12, err_msg=name)
        assert all(np.unique(row[np.isfinite(row)]).size <= 1 for row in values), name


def test_index_features_equal_pandas() -> None:
    assert PANEL.benchmark is not None
    log_index = pd.Series(np.log(PANEL.benchmark.close))
    np.testing.assert_allclose(value("index_return_1")[:, 0], log_index.diff())
    np.testing.assert_allclose(value("index_return_21")[:, 0], log_index.diff(21))
    np.testing.assert_allclose(value("index_volatility_21")[:, 0], log_index.diff().rolling(21).std())


def test_an_unknown_feature_is_refused_with_close_matches() -> None:
    with pytest.raises(FeatureError, match=r"unknown feature 'retrun_21'; did you mean .*return_21"):
        features.compute(PANEL, ("return_1", "retrun_21"))
    with pytest.raises(FeatureError, match=r"unknown feature 'zzz'; known are return_1, "):
        features.compute(PANEL, ("zzz",))


def test_missing_columns_are_named_with_the_feature() -> None:
    closes = panel(PANEL.close, name="closes only")
    with pytest.raises(FeatureError, match=r"'cci_30' needs high, low, which panel 'closes only' lacks"):
        features.compute(closes, ("return_1", "cci_30"))
    with pytest.raises(FeatureError, match=r"'index_return_21' needs benchmark"):
        features.compute(closes, ("index_return_21",))
    lacking = {"cci_30", "dx_30", "index_return_1", "index_return_21", "index_volatility_21"}
    lacking |= {name for name in features.names() if name.endswith("_sector_neutral")}
    assert set(features.names()) - set(features.available(closes)) == lacking
    assert features.available(PANEL) == features.names()


def test_invalid_registrations_and_results_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_FEATURES", dict(features._FEATURES))
    with pytest.raises(FeatureError, match=r"'return_1' is already registered"):
        features.register("return_1")(lambda panel: panel.close)
    with pytest.raises(FeatureError, match=r"needs column 'bid'"):
        features.register("spread", ("bid",))
    for _ in range(2):  # code that is imported again replaces its own features
        features.register("short")(lambda p: p.close[1:])
    with pytest.raises(FeatureError, match=r"'short' returned shape"):
        value("short")
    with pytest.raises(FeatureError, match=r"'return_1' is listed twice"):
        features.compute(PANEL, ("return_1", "return_1"))
    features.register("infinite")(lambda p: np.where(p.close > 60, np.inf, 1.0))
    assert set(np.unique(value("infinite")[PANEL.tradable & (PANEL.close <= 60)])) == {1.0}
    assert np.isnan(value("infinite")[PANEL.close > 60]).all()


def test_cells_of_a_notebook_replace_their_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_FEATURES", dict(features._FEATURES))
    for factor in (1, 2):
        cell = f"@register('mine')\ndef mine(panel): return panel.close * {factor}"
        exec(compile(cell, f"cell {factor}", "exec"), {"register": features.register, "__name__": "__main__"})
    np.testing.assert_array_equal(value("mine"), PANEL.close * 2)
    with pytest.raises(InputError, match=r'needs a name in quotes, .* write @fp.register_feature\("value"\)'):
        features.register(value)  # type: ignore[arg-type]
    with pytest.raises(FeatureError, match="'mine' must be a function of a panel, got 3"):
        features.register("mine")(3)  # type: ignore[arg-type]


def test_default_features_are_registered_and_need_only_closes() -> None:
    assert set(FeatureConfig().names) <= set(features.available(panel(PANEL.close)))


def test_features_with_windows_longer_than_the_panel_are_nan() -> None:
    short = changed_after(PANEL, 3, "cut")
    values = features.compute(short, features.names())
    assert values.shape == (4, 6, len(features.names()))
    assert np.isfinite(values[1:, 0, 0]).all()  # return_1
    assert np.isnan(values[..., features.names().index("dx_30")]).all()
    assert np.isnan(value("return_1", short)[:, 1]).all(), f"ticker 1 starts at bar {START}"


WITHOUT_OPTIONAL_PACKAGES = """
import sys
sys.modules.update(dict.fromkeys(["talib", "scipy", "skfolio", "pyarrow", "pydantic", "safetensors"]))  # None: absent
import numpy as np
from finrl_pod.settings.run import FeatureConfig
from finrl_pod.data.tensor import build_market
from finrl_pod.types import Panel
close = 50 * np.exp(np.random.default_rng(0).normal(0, 0.01, (300, 3)).cumsum(0))
times = np.datetime64("2020-01-01", "ns") + np.arange(300).astype("timedelta64[D]")
build_market(Panel(times, ("A", "B", "C"), close, np.isfinite(close)), FeatureConfig().names, (0, 299))
"""


@pytest.mark.slow
def test_default_features_need_only_torch_numpy_and_pandas() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_OPTIONAL_PACKAGES], check=True, timeout=120)


def test_missing_talib_raises_setup_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "talib", None)
    with pytest.raises(SetupError, match=r"pip install 'finrl-pod\[indicators\]'"):
        value("rsi_30")


def test_features_of_long_tables_are_computed_in_blocks_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.01, (600, 7)), 0))
    close[:30, 2] = np.nan
    close[100:105, 5] = np.nan
    days = np.datetime64("2015-01-01") + np.arange(600).astype("timedelta64[D]")
    long = make_panel(days.astype("datetime64[ns]"), list("ABCDEFG"), {"close": close}, allow_gaps=True)
    names = ("momentum_252_21", "volatility_63", "beta_252", "idiosyncratic_252", "residual_momentum", "drawdown_252")
    whole = features.compute(long, names)
    monkeypatch.setattr(blocks, "BLOCK_CELLS", 2 * 600)
    assert np.array_equal(features.compute(long, names), whole, equal_nan=True)
