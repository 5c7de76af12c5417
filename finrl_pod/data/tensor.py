"""Conversion of a panel to a MarketTensor: observations and fill prices of every bar."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from finrl_pod.data.blocks import over_columns, row_blocks
from finrl_pod.data.features import Feature, check, feature_values
from finrl_pod.data.price_features import RELATIVE_VARIANCE, over_own_bars, rolling
from finrl_pod.data.price_features import turbulence as compute_turbulence
from finrl_pod.errors import DataError, FeatureError, UndefinedFeatureError
from finrl_pod.memory import release_mapped_pages
from finrl_pod.tables import new_table, stored
from finrl_pod.types import Bools, Floats, MarketTensor, Normaliser, Panel, Tensor

Fill = Literal["next", "same_close"]

# Placeholder price of a ticker before its first bar; it is not tradable there.
_NO_PRICE = 1.0
# A feature whose standard deviation is below this fraction of its mean is constant.
_RELATIVE_SPREAD = 1e-12
VOLATILITY_BARS = 21  # returns in the estimate
MIN_VOLATILITY_RETURNS = 5  # returns needed for an estimate
DEFAULT_VOLATILITY = 0.02  # per bar, until there is an estimate


def build_market(
    panel: Panel,
    feature_names: tuple[str, ...],
    fit: tuple[int, int] | Normaliser,
    fill: Fill = "next",
    turbulence: bool = False,
) -> MarketTensor:
    """Build the tensors of a panel for vectorised environments, on the CPU (see `types.MarketTensor`).

    fit: first and last training bar (inclusive) to fit the normaliser on, or a fitted normaliser.
    fill: "next" fills the decision of bar t at the open of t+1, or at its close if the panel has no opens; "same_close"
    fills at the close of t. turbulence: also compute turbulence [T], needed for a turbulence limit (half a second for
    8,000 bars of 20 tickers, minutes for hundreds); implied by the feature of that name.

    A ticker is `fillable` at t if it has a bar at t and at the bar of the fill; `fillable` depends on the next bar and
    is for filling only, policies use `tradable`. `delisted` is True from the last bar of a ticker on, unless that is
    the last bar of the panel. A ticker that is no member of the universe is not tradable; one that leaves is delisted.
    `first` is the first bar at which one tradable ticker has all features defined, but for features of tables.

    Raises FeatureError for features that cannot be computed (see `features.compute`), are never all defined, or differ
    from the normaliser's; DataError for an unknown fill rule or a panel of fewer than three bars.
    """
    if fill not in ("next", "same_close"):
        raise DataError(f'fill must be "next" or "same_close", got {fill!r}')
    bars = len(panel.times)
    if bars < 3:
        raise DataError(f"a market needs at least 3 bars, panel {panel.name!r} has {bars}")
    names = tuple(feature_names)
    if isinstance(fit, Normaliser) and fit.feature_names != names:
        raise FeatureError(f"the normaliser was fitted for {fit.feature_names}, not for {names}; fit it again")
    checked_features = check(panel, names)
    raw, features, normaliser = _normalise_features(panel, checked_features, fit)
    if panel.tradable.all():  # the array of the panel: it is as large as a few features
        close = np.require(panel.close, np.float64, ("C", "W"))
    else:
        close = stored(over_columns(_carry_forward, panel.close, panel.tradable))
    investable = panel.investable
    fills, fillable = _fills(panel, close, fill)
    delisted = _delisted(panel.tradable)
    if panel.members is not None:
        delisted[:-1] |= ~panel.members[1:]  # holdings are sold at the last close as a member
        delisted |= ~panel.members
    volumes = fill_volumes(panel, fillable, delisted, fill)
    half_spreads = fill_half_spreads(panel, fillable, fill)
    return MarketTensor(
        times=panel.times,
        symbols=panel.symbols,
        close=torch.from_numpy(close),
        fill=_tensor(fills),
        features=torch.from_numpy(features),
        raw_features=torch.from_numpy(raw),
        tradable=_tensor(investable.copy()),
        fillable=_tensor(fillable),
        delisted=_tensor(delisted),
        feature_names=names,
        normaliser=normaliser,
        fill_rule=fill,
        first=_first_defined_bar(raw, investable, checked_features),
        steps=bars - 2 if fill == "next" else bars - 1,
        turbulence=torch.from_numpy(compute_turbulence(panel)) if turbulence or "turbulence" in names else None,
        fill_volume=None if volumes is None else _tensor(volumes),
        volatility=None if volumes is None else _tensor(trailing_volatility(panel.close, panel.tradable)),
        half_spread=None if half_spreads is None else _tensor(half_spreads),
        dividends=None if panel.dividend is None else _tensor(_dividends(panel.dividend, delisted)),
        fitted=None if isinstance(fit, Normaliser) else fit,
        cash_rates=panel.cash_rates,
    )


def _tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(stored(values))


def _normalise_features(
    panel: Panel, features: tuple[Feature, ...], fit: tuple[int, int] | Normaliser
) -> tuple[NDArray[np.float32], NDArray[np.float32], Normaliser]:
    """Raw and normalised features [T, N, F] and the normaliser, one feature at a time to save memory.

    They are stored one after another first: written into [T, N, F] one by one, each would write to every page again.
    """
    investable = panel.investable
    names = tuple(feature.name for feature in features)
    shape = (*panel.close.shape, len(names))
    columns = new_table((len(names), *panel.close.shape))
    means: list[float] = []
    stds: list[float] = []
    for i, feature in enumerate(features):
        values = feature_values(panel, feature)
        if not isinstance(fit, Normaliser):
            feature_normaliser = _fit_feature(values, investable, fit, feature)
            means += feature_normaliser.mean
            stds += feature_normaliser.std
        for rows in row_blocks(values.shape):
            block = values[rows]
            columns[i, rows] = np.where(investable[rows] & np.isfinite(block), block, np.nan)
            release_mapped_pages()
        del values
    normaliser = fit if isinstance(fit, Normaliser) else Normaliser(names, tuple(means), tuple(stds))
    raw = new_table(shape)
    scaled_features = new_table(shape)
    for rows in row_blocks(shape):
        block = columns[:, rows].transpose(1, 2, 0)
        raw[rows] = block
        scaled_features[rows] = normalise(block, normaliser)
        release_mapped_pages()
    return raw, scaled_features, normaliser


def _fit_feature(values: Floats, investable: Bools, fit: tuple[int, int], feature: Feature) -> Normaliser:
    """The normaliser of a feature [T, N]; the identity for an optional one without a value on the bars `fit`."""
    try:
        return fit_normaliser(values[..., None], investable, *fit, (feature.name,))
    except UndefinedFeatureError:
        if not feature.is_optional:
            raise
        return Normaliser((feature.name,), (0.0,), (1.0,))


def with_extra_feature(market: MarketTensor, name: str, values: Floats, fit: tuple[int, int]) -> MarketTensor:
    """Add a feature, normalised on the bars `fit` (first and last, inclusive).

    values: [T, N] float64, NaN where undefined; causality is not checked. Values of untradable cells are dropped, and
    `first` stays as it is. Raises FeatureError for an existing name or a wrong shape.
    """
    bars, assets, _ = market.shape
    if name in market.feature_names:
        raise FeatureError(f"the market already has a feature {name!r}; choose another name")
    if values.shape != (bars, assets):
        raise FeatureError(f"feature {name!r} must have shape {(bars, assets)}, has {values.shape}")
    tradable = market.tradable.cpu().numpy()
    raw = np.where(tradable & np.isfinite(values), values, np.nan)[..., None]  # [T, N, 1]
    extra = fit_normaliser(raw, tradable, *fit, (name,))
    raw_values = raw.astype(np.float32)
    normaliser = market.normaliser
    device = market.features.device
    extra = dataclasses.replace(extra, clip=normaliser.clip)
    scaled_values = normalise(raw_values.astype(np.float64), extra)
    return dataclasses.replace(
        market,
        features=torch.cat([market.features, torch.from_numpy(scaled_values).to(device)], -1),
        raw_features=torch.cat([market.raw_features, torch.from_numpy(raw_values).to(device)], -1),
        feature_names=(*market.feature_names, name),
        normaliser=Normaliser(
            (*normaliser.feature_names, name),
            (*normaliser.mean, *extra.mean),
            (*normaliser.std, *extra.std),
            normaliser.clip,
        ),
    )


def cut_market(market: MarketTensor, first: int, last: int) -> MarketTensor:
    """Bars first to last of a market, as views of its tensors; decisions of the last bar cannot fill."""
    tables = {name: x[first : last + 1] for name, x in vars(market).items() if isinstance(x, torch.Tensor)}
    cut: dict[str, Any] = {**tables, "times": market.times[first : last + 1], "fitted": None}
    cut |= {"first": max(market.first - first, 0), "steps": min(market.steps, last) - first}
    return dataclasses.replace(market, **cut)


def leaked_return(market: MarketTensor) -> Floats:
    """Future return ln(fill[t+1] / fill[t]) of a decision at bar t: [T, N] float64, NaN where it cannot be traded.

    Look-ahead on purpose: for benchmarks that measure whether a learner finds a known edge.
    """
    log_fill = market.fill.double().log().cpu().numpy()
    result = np.full(log_fill.shape, np.nan)
    result[:-1] = np.diff(log_fill, axis=0)
    result[market.steps :] = np.nan
    result[~market.fillable.cpu().numpy()] = np.nan
    return result


def to_device(market: MarketTensor, device: torch.device | str, dtype: torch.dtype | None = None) -> MarketTensor:
    """Move all tensors to `device`; `close` and `fill` also to `dtype` if given."""
    tensors = {name: value.to(device) for name, value in vars(market).items() if isinstance(value, torch.Tensor)}
    tensors |= {"close": market.close.to(device, dtype), "fill": market.fill.to(device, dtype)}
    return dataclasses.replace(market, **tensors)  # type: ignore[arg-type]


def _carry_forward(values: Floats, is_known: Bools, start: float = _NO_PRICE) -> Floats:
    """Known values [T, N] forward-filled over gaps and after the end; `start` before the first."""
    bar = np.where(is_known, np.arange(len(values))[:, None], -1)
    last_bar = np.maximum.accumulate(bar, axis=0)
    return np.where(last_bar >= 0, np.take_along_axis(values, np.maximum(last_bar, 0), axis=0), start)


def _fills(panel: Panel, forward_filled: Floats, rule: Fill) -> tuple[Floats, Bools]:
    """Fill prices and whether the decision of t can fill: [T, N] each."""
    if rule == "same_close":
        return forward_filled.copy(), panel.investable.copy()
    fillable = np.zeros_like(panel.tradable)
    fillable[:-1] = panel.investable[:-1] & panel.investable[1:]
    fills = forward_filled.copy()
    price = panel.close if panel.open is None else panel.open
    np.copyto(fills[:-1], price[1:], where=fillable[:-1])
    return fills, fillable


def _delisted(tradable: Bools) -> Bools:
    """[T, N] bool: the ticker has no bar after t, and its last bar is not the last of the panel."""
    trades_later = np.zeros_like(tradable)
    trades_later[:-1] = np.logical_or.accumulate(tradable[:0:-1], axis=0)[::-1]
    delisted: Bools = ~trades_later & ~tradable[-1]
    return delisted


def _dividends(dividend: Floats, delisted: Bools) -> Floats:
    """[T, N] cash per share paid at bar t+1 on holdings from before; what is sold for its delisting earns none."""
    payments = np.zeros_like(dividend)
    payments[:-1] = np.where(delisted[:-1], 0.0, np.nan_to_num(dividend[1:]))
    return payments


def _first_defined_bar(raw: NDArray[np.float32], tradable: Bools, features: tuple[Feature, ...]) -> int:
    """First bar at which a tradable ticker has all features defined that are not optional."""
    required = [i for i, feature in enumerate(features) if not feature.is_optional]
    first = _first_complete_bar(raw, tradable, required)
    if first is not None:
        return first
    names = [features[i].name for i in required]
    rule = ", or environment.turbulence_limit = 0, which asks for turbulence" if "turbulence" in names else ""
    raise UndefinedFeatureError(
        f"the features {', '.join(names) or '(none)'} are never defined together in {len(raw)} bars; "
        f"use more bars or features with shorter windows{rule}"
    )


def first_defined_bar(market: MarketTensor, names: Sequence[str]) -> int:
    """First bar at which a tradable ticker has these features of a market defined, or the number of bars."""
    columns = [market.feature_names.index(name) for name in names]
    first = _first_complete_bar(market.raw_features.numpy(), market.tradable.numpy(), columns)
    return len(market.times) if first is None else first


def _first_complete_bar(raw: NDArray[np.float32], tradable: Bools, columns: Sequence[int]) -> int | None:
    """First bar of raw features [T, N, F] at which a tradable ticker has all these columns defined."""
    for rows in row_blocks(raw.shape):
        is_complete: Bools = np.any(tradable[rows] & np.isfinite(raw[rows][..., columns]).all(axis=-1), axis=-1)
        if is_complete.any():
            return int(rows.start) + int(is_complete.argmax())
    return None


# ---------------------------------------------------------------------- normalisation


def fit_normaliser(raw: Floats, tradable: Bools, first: int, last: int, names: tuple[str, ...]) -> Normaliser:
    """Mean and standard deviation (n) of each feature over the tradable, defined cells of bars first..last, inclusive.

    raw: [T, N, F], NaN where undefined. tradable: [T, N]. names: F. A constant feature gets std 1.

    Raises FeatureError for a range outside the data and for a feature that is undefined on the whole range.
    """
    if not 0 <= first <= last < len(raw):
        raise FeatureError(f"features can be fitted on bars 0 to {len(raw) - 1}, got {first} to {last}")
    rows = raw[first : last + 1]
    tradable_rows = tradable[first : last + 1]
    means, stds = [], []
    for i, name in enumerate(names):
        values = rows[..., i][tradable_rows & np.isfinite(rows[..., i])]
        if not values.size:
            fix = "train on more bars or drop the feature"
            if name == "turbulence":
                fix = "use more than 253 bars, or set environment.turbulence_limit = 0, which asks for it"
            raise UndefinedFeatureError(f"feature {name!r} is undefined on all training bars {first} to {last}; {fix}")
        mean, std = float(values.mean()), float(values.std())
        means.append(mean)
        stds.append(std if std > _RELATIVE_SPREAD * max(abs(mean), float(np.finfo(np.float64).tiny)) else 1.0)
    return Normaliser(names, tuple(means), tuple(stds))


def normalise(raw: NDArray[np.floating[Any]], normaliser: Normaliser) -> NDArray[np.float32]:
    """(raw - mean) / std clipped to +-clip, 0 where raw is NaN: [..., F] -> [..., F] float32, with the same strides."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (normaliser.mean, normaliser.std))
    scaled_values = torch.from_numpy(raw).double().sub(mean).div_(std)
    scaled_values.clamp_(-normaliser.clip, normaliser.clip).nan_to_num_(0.0)
    return scaled_values.float().numpy()


# ---------------------------------------------------------------------- inputs of trading costs


def fill_volumes(panel: Panel, fillable: Bools, delisted: Bools, fill: str) -> Floats | None:
    """[T, N] shares traded in the bar where the decision of t fills; 0 if it cannot fill, inf for a delisting payout.

    A bar of unknown volume has the last known one of its ticker, 0 before the first. None if the panel has no volumes.
    """
    if panel.volume is None:
        return None
    # In units of the close: adjusted prices, lowered by later dividends, would understate the money that was traded.
    traded = panel.volume if panel.split_close is None else panel.volume * (panel.split_close / panel.close)
    traded = pd.DataFrame(traded).ffill().fillna(0.0).to_numpy()
    volume = np.zeros_like(traded)
    if fill == "same_close":
        volume[:] = traded
    else:
        volume[:-1] = traded[1:]
    volume = np.where(fillable, volume, 0.0)
    return np.where(delisted & ~fillable, np.inf, volume)


def fill_half_spreads(panel: Panel, fillable: Bools, fill: str) -> Floats | None:
    """[T, N] half of the quoted spread in the bar where the decision of t fills, as a fraction of the price.

    NaN where it can fill but the spread is unknown; where it cannot fill, the last known one, 0 before the first. None
    if the panel has no spreads.
    """
    if panel.spread is None:
        return None

    def of_columns(spread: Floats, fillable: Bools) -> Floats:
        half = spread / 2
        known_spread = _carry_forward(half, ~np.isnan(half), start=0.0)
        if fill == "same_close":
            return np.where(fillable, half, known_spread)
        np.copyto(known_spread[:-1], half[1:], where=fillable[:-1])
        return known_spread

    return over_columns(of_columns, panel.spread, fillable)


def trailing_volatility(close: Floats, tradable: Bools) -> Floats:
    """[T, N] standard deviation (n - 1) of the last 21 log returns of a ticker known at t.

    `DEFAULT_VOLATILITY` before there are five. close: [T, N], > 0 where tradable [T, N]. Returns are taken between
    consecutive bars of the ticker: gaps and bars before its start do not count as zero returns. In gaps and after the
    end the last estimate is forward-filled.
    """

    def estimate(prices: Floats) -> Floats:
        returns = np.diff(np.log(prices), axis=0, prepend=np.full((VOLATILITY_BARS, prices.shape[1]), np.nan))
        is_known = np.isfinite(returns)
        known_returns = np.where(is_known, returns, 0.0)
        count, total, squares = (
            rolling(values, VOLATILITY_BARS, "sum")[VOLATILITY_BARS - 1 :]
            for values in (is_known.astype(np.float64), known_returns, known_returns**2)
        )
        deviations = squares - total**2 / np.maximum(count, 1)
        variance = np.where(deviations > RELATIVE_VARIANCE * squares, deviations, 0.0) / np.maximum(count - 1, 1)
        return np.where(count >= MIN_VOLATILITY_RETURNS, np.sqrt(variance), np.nan)

    estimates = over_own_bars(estimate, tradable, close)
    return over_columns(_carry_forward_volatility, estimates)


def _carry_forward_volatility(estimates: Floats) -> Floats:
    return _carry_forward(estimates, ~np.isnan(estimates), start=DEFAULT_VOLATILITY)
