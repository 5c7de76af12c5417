"""FinRL's technical indicators, computed by TA-Lib on each ticker's own bars.

All return [T, N] float64, NaN during TA-Lib's warm-up and where a ticker is not tradable. TA-Lib's conventions:
Wilder's smoothing for RSI and DX; Bollinger bands two population standard deviations (n) about a 20-bar mean; MACD is
the line (12- minus 26-bar exponential mean), not the signal, and is defined from bar 33 on, when the signal is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from finrl_pod.data.price_features import over_own_bars
from finrl_pod.errors import SetupError
from finrl_pod.types import Floats, Panel


def macd(panel: Panel) -> Floats:
    """MACD line, in currency; needs close."""
    talib = _talib()
    return _by_ticker(panel, lambda close: talib.MACD(close, 12, 26, 9)[0], "close")


def boll_ub(panel: Panel) -> Floats:
    """Upper Bollinger band, in currency; needs close."""
    talib = _talib()
    return _by_ticker(panel, lambda close: talib.BBANDS(close, 20, 2.0, 2.0)[0], "close")


def boll_lb(panel: Panel) -> Floats:
    """Lower Bollinger band, in currency; needs close."""
    talib = _talib()
    return _by_ticker(panel, lambda close: talib.BBANDS(close, 20, 2.0, 2.0)[2], "close")


def rsi(panel: Panel, bars: int) -> Floats:
    """Relative strength index, 0 to 100; needs close."""
    talib = _talib()
    return _by_ticker(panel, lambda close: talib.RSI(close, bars), "close")


def cci(panel: Panel, bars: int) -> Floats:
    """Commodity channel index; needs high, low, close."""
    talib = _talib()
    return _by_ticker(panel, lambda high, low, close: talib.CCI(high, low, close, bars), "high", "low", "close")


def dx(panel: Panel, bars: int) -> Floats:
    """Directional movement index, 0 to 100; needs high, low, close."""
    talib = _talib()
    return _by_ticker(panel, lambda high, low, close: talib.DX(high, low, close, bars), "high", "low", "close")


def sma(panel: Panel, bars: int) -> Floats:
    """Simple moving average of the last `bars` closes, in currency; needs close."""
    talib = _talib()
    return _by_ticker(panel, lambda close: talib.SMA(close, bars), "close")


def _by_ticker(panel: Panel, function: Callable[..., Floats], *names: str) -> Floats:
    """Apply a single-series TA-Lib function to every ticker's own bars."""
    counts = panel.tradable.sum(0)

    def moved(*columns: Floats) -> Floats:
        result = np.full(panel.close.shape, np.nan)
        for asset, count in enumerate(counts):
            if count:
                result[:count, asset] = function(*(np.ascontiguousarray(c[:count, asset]) for c in columns))
        return result

    return over_own_bars(moved, panel.tradable, *(getattr(panel, name) for name in names))


def _talib() -> ModuleType:
    try:
        import talib
    except ImportError:
        raise SetupError("technical indicators need TA-Lib: pip install 'finrl-pod[indicators]'") from None
    module: ModuleType = talib
    return module
