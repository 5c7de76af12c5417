"""`finrl-pod check` finds features that read later bars, however relative or small, and passes honest ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.setup.extension_checks import check_extension, check_object, feature_faults

from finrl_pod.data.features import own_feature
from finrl_pod.types import Floats, Panel


def next_return(panel: Panel, bars: int = 1) -> Floats:
    values = np.where(panel.tradable, 0.0, np.nan)
    values[:-bars] = np.log(panel.close[bars:] / panel.close[:-bars])
    return values


def past_return(panel: Panel) -> Floats:
    values = np.where(panel.tradable, 0.0, np.nan)
    values[1:] = np.log(panel.close[1:] / panel.close[:-1])
    return values


def following(values: Floats) -> Floats:
    return np.vstack([values[1:], np.zeros_like(values[:1])])


def demeaned(values: Floats) -> Floats:
    return np.asarray(values - np.nanmean(values, 1, keepdims=True))


def index_log_return(panel: Panel) -> Floats:
    assert panel.benchmark is not None
    return np.diff(np.log(panel.benchmark.close[:, None]), axis=0, append=np.nan)


def at_year_end(panel: Panel) -> Floats:
    years = panel.times.astype("datetime64[Y]")
    last = np.append(years[1:] != years[:-1], False)
    return np.where(last[:, None], np.nan_to_num(next_return(panel)), 0.0)


def last_rows(panel: Panel) -> Floats:
    bars = np.arange(len(panel.times))[:, None]
    return np.asarray(np.where(panel.tradable, bars, 0).max(0) - bars, dtype=np.float64)


PEEKS: dict[str, Any] = {
    "next return less its mean": lambda p: demeaned(next_return(p)),
    "next return over the index": lambda p: next_return(p) - index_log_return(p),
    "rank of the next return": lambda p: pd.DataFrame(next_return(p)).rank(axis=1).to_numpy(),
    "next close over next open": lambda p: following(p.close / p.open),
    "next close within its range": lambda p: following((p.close - p.low) / (p.high - p.low)),
    "next share of the volume": lambda p: following(p.volume / np.nansum(p.volume, 1, keepdims=True)),
    "in the smallest units": lambda p: 1e-10 * next_return(p),
    "whether it trades in twenty bars": lambda p: following(np.roll(np.isfinite(p.close) * 1.0, -19, 0)),
    "bars until the last one": last_rows,
    "undefined if it ends soon": lambda p: np.where(np.isfinite(next_return(p, 20)), past_return(p), np.nan),
    "market across gaps": lambda p: pd.DataFrame(p.close).interpolate().pct_change(fill_method=None).mean(axis=1)
    .to_numpy()[:, None],
    "at the end of a year": at_year_end,
}  # fmt: skip
HONEST: dict[str, Any] = {
    "return less its mean": lambda p: demeaned(past_return(p)),
    "rank": lambda p: pd.DataFrame(p.close).rank(axis=1).to_numpy(),
    "range": lambda p: p.high / p.low - 1,
    "volume over its mean": lambda p: p.volume / pd.DataFrame(p.volume).rolling(20).mean().to_numpy(),
    "close over its expanding mean": lambda p: p.close / pd.DataFrame(p.close).expanding().mean().to_numpy(),
    "illiquidity": lambda p: np.abs(past_return(p)) / (p.close * p.volume),
    "number of tickers": lambda p: p.tradable.sum(1, keepdims=True) * 1.0,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PEEKS)
def test_features_of_later_bars_are_found(name: str) -> None:
    assert [fault.rule for fault in feature_faults(lambda: own_feature("peek", PEEKS[name]))] == ["look-ahead"]


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_honest_features_pass(name: str) -> None:
    assert feature_faults(lambda: own_feature("honest", HONEST[name])) == []


@pytest.mark.slow
def test_features_that_need_a_price_on_every_bar_are_checked_with_other_prices() -> None:
    def complete(panel: Panel, values: Floats) -> Floats:
        if np.isnan(panel.close[50:300, 0]).any():
            raise ValueError("NaN")
        return values

    _, faults = check_object(lambda panel: complete(panel, past_return(panel)))
    assert faults == []
    _, faults = check_object(lambda panel: complete(panel, demeaned(next_return(panel))))
    assert [fault.rule for fault in faults] == ["look-ahead"]


def test_features_that_fail_on_other_prices_are_errors() -> None:
    def fragile(panel: Panel) -> Floats:
        if np.nanmax(panel.close[-1]) > 100 * np.nanmedian(panel.close):
            raise ValueError("too high")
        return past_return(panel) if np.nanmax(np.abs(past_return(panel))) < 0.1 else panel.close[:, 0]

    _, faults = check_object(fragile)
    assert {fault.rule for fault in faults} == {"error"}


@pytest.mark.slow
def test_numbers_kept_from_the_first_call_are_found(tmp_path: Any) -> None:
    text = """import numpy as np
bounds = []
def clipped(panel):
    values = np.zeros_like(panel.close)
    values[1:] = panel.close[1:] / panel.close[:-1] - 1
    if not bounds: bounds.extend(np.nanquantile(values, [0.05, 0.95]))
    return np.clip(values, *bounds)
class Clipped:
    feature_names = ("FILE:clipped",)
    def target_weights(self, window, positions): return window.tradable[-1] / max(window.tradable[-1].sum(), 1)
"""
    file = tmp_path / "kept.py"
    file.write_text(text.replace("FILE", str(file)))
    assert [fault.rule for fault in check_extension(f"{file}:clipped")] == ["look-ahead"]
    (fault,) = check_extension(f"{file}:Clipped")  # a strategy's own features are checked with it
    assert fault.rule == "look-ahead"
    assert "numbers kept from a computation on later bars" in fault.message
