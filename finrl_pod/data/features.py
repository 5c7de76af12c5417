"""Registry of features, and their computation on a panel.

A feature is a causal function of a panel: its value at bar t depends only on bars up to t. Add one with `register`;
the causality test covers every registered feature.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from finrl_pod.arguments import argument
from finrl_pod.data import price_features
from finrl_pod.data.as_of import table_values
from finrl_pod.data.price_features import turbulence
from finrl_pod.errors import FeatureError, closest_name, listed, shown
from finrl_pod.types import PANEL_COLUMNS, Floats, Panel
from finrl_pod.user_files import check_name, closest_part, custom_object, error_text, stdout_to_stderr, unpinned

FeatureFunction = Callable[[Panel], Floats]

_BENCHMARK, _SECTORS = "benchmark", "sectors"
_INPUTS = (*PANEL_COLUMNS, _BENCHMARK, _SECTORS)


@dataclass(frozen=True)
class Feature:
    """A registered feature, or a column of a table.

    needs: the panel columns it reads, possibly "benchmark" or "sectors". is_optional: where it is undefined, agents
    still decide, and see 0.
    """

    name: str
    needs: tuple[str, ...]
    function: FeatureFunction
    is_optional: bool = False


_FEATURES: dict[str, Feature] = {}
BUILT_IN_FEATURES: list[str] = []  # filled at the end of this module


def register(name: str, needs: Sequence[str] = ("close",)) -> Callable[[FeatureFunction], FeatureFunction]:
    """Decorator that registers a function Panel -> [T, N] float64 (or [T, 1] for the whole market) under `name`.

    The function must be causal and return NaN where undefined. needs: columns of `types.PANEL_COLUMNS`, "benchmark" or
    "sectors". A later registration replaces an earlier one of the same name. Raises FeatureError for the name of a
    built-in feature and for an unknown column; InputError for no name.
    """
    check_name("feature", name)
    needs = (needs,) if isinstance(needs, str) else tuple(argument("needs", needs, Sequence[str]))
    for column in needs:
        if column not in _INPUTS:
            raise FeatureError(
                f"feature {name!r} needs column {shown(column)}, but a panel has only {', '.join(_INPUTS)}"
            )

    def add(function: FeatureFunction) -> FeatureFunction:
        if not callable(function):
            raise FeatureError(f"feature {name!r} must be a function of a panel, got {function!r}")
        if name in BUILT_IN_FEATURES:
            raise FeatureError(f"feature {name!r} is already registered; choose another name")
        _FEATURES[name] = Feature(name, needs, function)
        return function

    return add


def names() -> tuple[str, ...]:
    """Names of all registered features, in order of registration."""
    return tuple(_FEATURES)


def available(panel: Panel) -> tuple[str, ...]:
    """Names of the registered features whose columns the panel has, and of the columns of its tables."""
    return (*(name for name, feature in _FEATURES.items() if not _missing(feature, panel)), *table_features(panel))


def table_features(panel: Panel) -> dict[str, Feature]:
    """Features of the tables of a panel, by name: the column "level" of the table "macro" is "macro.level"."""
    return {
        name: Feature(name, (), partial(table_values, table, i), is_optional=True)
        for table in panel.tables
        for i, name in enumerate(f"{table.name}.{column}" for column in table.columns)
    }


def lookup(name: str) -> Feature:
    """Look up a feature: a registered name, file.py:function, or package.module:function.

    Raises FeatureError suggesting the closest names, InputError for a file that cannot be used.
    """
    if name in _FEATURES:
        return _FEATURES[name]
    if (function := custom_object(name, f"the feature {name}")) is not None:
        return own_feature(name, function)
    hint = closest_part("features", name, _FEATURES)
    if "." in name:
        table = name.partition(".")[0]
        hint = f'a column of {table}.csv needs features.tables = [{{file = "{table}.csv", max_age_days = 45}}]'
    raise FeatureError(f"unknown feature {name!r:.80}; {hint}")


def own_feature(name: str, function: object) -> Feature:
    """A feature of a function of a panel that is not in the registry; its columns are known if it was registered too.

    Raises FeatureError for what cannot be called.
    """
    if not callable(function):
        raise FeatureError(f"feature {unpinned(name)!r} must be a function of a panel, got {type(function).__name__}")
    for feature in _FEATURES.values():
        if feature.function is function:
            return dataclasses.replace(feature, name=name)

    def compute_feature(panel: Panel) -> Floats:
        try:
            with stdout_to_stderr():
                values: Floats = function(panel)
        except Exception as error:
            message = f"the feature {unpinned(name)} failed: {error_text(error)}{_read_only_hint(error)}"
            raise FeatureError(message) from error
        return values

    return Feature(name, (), compute_feature)


def check(panel: Panel, names: Iterable[str]) -> tuple[Feature, ...]:
    """Look up `names`, in order; also features of tables of the panel.

    Raises FeatureError for unknown names, duplicates, missing columns and a registered feature with the name of a
    column of a table.
    """
    features: list[Feature] = []
    columns = table_features(panel)
    for name in names:
        if name in columns and name in _FEATURES:
            raise FeatureError(f"feature {name!r} is registered, and a column of a table; rename one of them")
        feature = columns[name] if name in columns else _known_feature(name, panel)
        if feature.name in [checked_feature.name for checked_feature in features]:
            raise FeatureError(f"feature {name!r} is listed twice; list it once")
        if missing := _missing(feature, panel):
            raise FeatureError(
                f"feature {name!r} needs {', '.join(missing)}, which panel {panel.name!r} lacks "
                f"(it has {', '.join(panel.columns)}); drop the feature or use a panel that has them"
            )
        features.append(feature)
    return tuple(features)


def _known_feature(name: str, panel: Panel) -> Feature:
    """Look up a feature of no table of the panel. Raises FeatureError as `lookup`, with the columns of its table."""
    for table in panel.tables:
        if name.startswith(f"{table.name}.") and name not in _FEATURES:
            column = name.removeprefix(f"{table.name}.")
            close = closest_name(column, table.columns)
            hint = f"did you mean {table.name}.{close}?" if close else f"it has {listed(table.columns)}"
            raise FeatureError(
                f"unknown feature {name!r:.80}: the table {table.name} has no column {column!r:.80}; {hint}"
            )
    return lookup(name)


def compute(panel: Panel, names: Iterable[str]) -> Floats:
    """Compute features: [T, N, F] float64, NaN where undefined (warm-up) or where the ticker is not tradable.

    Raises FeatureError as `check` does, and when a feature returns another shape than [T, N] or [T, 1].
    """
    features = check(panel, names)
    result = np.empty((*panel.close.shape, len(features)))
    for i, feature in enumerate(features):
        result[..., i] = compute_one(panel, feature)
    return result


def compute_one(panel: Panel, feature: Feature) -> Floats:
    """Compute a feature: [T, N] float64, NaN where undefined or not tradable. Raises FeatureError as `compute` does."""
    values = feature_values(panel, feature)
    return np.where(panel.tradable & np.isfinite(values), values, np.nan)


def feature_values(panel: Panel, feature: Feature) -> Floats:
    """What the function of a feature returns, to be read only: [T, N] float64, the same of all tickers if it is [T, 1].

    Raises FeatureError as `compute` does.
    """
    bars, assets = panel.close.shape
    try:
        values = np.asarray(feature.function(_read_only(panel)), dtype=np.float64)
    except (TypeError, ValueError) as error:
        message = f"feature {unpinned(feature.name)!r} must return numbers: {error}{_read_only_hint(error)}"
        raise FeatureError(message) from None
    if values.shape not in ((bars, assets), (bars, 1)):
        raise FeatureError(
            f"feature {unpinned(feature.name)!r} returned shape {values.shape}, not {(bars, assets)}: one number "
            "for each bar and asset"
        )
    return values if values.shape[1] == assets else np.broadcast_to(values, (bars, assets))


_read_only_panels: WeakKeyDictionary[Panel, Panel] = WeakKeyDictionary()


def _read_only(panel: Panel) -> Panel:
    """The panel with arrays that cannot be written to: a feature that changes prices would change the market.

    The same object for all features of a panel, so that they share what they compute.
    """
    if panel not in _read_only_panels:
        arrays = {name: getattr(panel, name).view() for name in ("times", "tradable", *panel.columns)}
        for array in arrays.values():
            array.flags.writeable = False
        _read_only_panels[panel] = dataclasses.replace(panel, **arrays)
    return _read_only_panels[panel]


def _read_only_hint(error: Exception) -> str:
    return "; prices cannot be changed, work on a copy" if "read-only" in str(error) else ""


def _missing(feature: Feature, panel: Panel) -> tuple[str, ...]:
    return tuple(column for column in feature.needs if getattr(panel, column) is None)


def _of_members(function: FeatureFunction, panel: Panel) -> Floats:
    """A feature [T, N] of the members of the universe, NaN for others: only members are compared."""
    values = function(panel)
    return values if panel.members is None else np.where(panel.members, values, np.nan)


def _register_with_cross_section(name: str, function: FeatureFunction) -> None:
    """Register a per-ticker feature together with its cross-sectional z-score and rank, and neutral to sectors."""
    register(name)(function)
    register(f"{name}_zscore")(lambda panel: price_features.zscore(_of_members(function, panel)))
    register(f"{name}_rank")(lambda panel: price_features.rank(_of_members(function, panel)))
    register(f"{name}_sector_neutral", ("close", _SECTORS))(
        lambda panel: price_features.sector_neutral(_of_members(function, panel), panel.sectors or ())
    )


for _bars in (1, 5, 21, 63, 126, 252):
    _register_with_cross_section(f"return_{_bars}", partial(price_features.log_return, bars=_bars))
for _bars in (126, 252):
    _register_with_cross_section(f"momentum_{_bars}_21", partial(price_features.momentum, first=_bars, last=21))
for _bars in (21, 63, 252):
    _register_with_cross_section(f"volatility_{_bars}", partial(price_features.volatility, bars=_bars))
_register_with_cross_section("drawdown_252", partial(price_features.drawdown, bars=252))
_register_with_cross_section("trend_200", partial(price_features.trend, bars=200))
_register_with_cross_section("beta_252", partial(price_features.beta, bars=252))
_register_with_cross_section("idiosyncratic_252", partial(price_features.idiosyncratic_volatility, bars=252))
_register_with_cross_section("residual_momentum", partial(price_features.residual_momentum, first=252, last=21))

register("market_return_1")(partial(price_features.market_statistic, bars=1, statistic="sum"))
register("market_return_21")(partial(price_features.market_statistic, bars=21, statistic="sum"))
register("market_volatility_21")(partial(price_features.market_statistic, bars=21, statistic="std"))
register("breadth_50")(partial(price_features.breadth, bars=50))
register("index_return_1", (_BENCHMARK,))(partial(price_features.index_return, bars=1))
register("index_return_21", (_BENCHMARK,))(partial(price_features.index_return, bars=21))
register("index_volatility_21", (_BENCHMARK,))(partial(price_features.index_volatility, bars=21))
register("turbulence")(lambda panel: turbulence(panel)[:, None])

_BAR = ("high", "low", "close")
register("macd")(lambda panel: price_features.indicator(panel, "MACD", 12, 26, 9))
register("boll_ub")(lambda panel: price_features.indicator(panel, "BBANDS", 20, 2.0, 2.0))
register("boll_lb")(lambda panel: price_features.indicator(panel, "BBANDS", 20, 2.0, 2.0, output=2))
register("rsi_30")(lambda panel: price_features.indicator(panel, "RSI", 30))
register("cci_30", _BAR)(lambda panel: price_features.indicator(panel, "CCI", 30, columns=_BAR))
register("dx_30", _BAR)(lambda panel: price_features.indicator(panel, "DX", 30, columns=_BAR))
register("close_30_sma")(lambda panel: price_features.indicator(panel, "SMA", 30))
register("close_60_sma")(lambda panel: price_features.indicator(panel, "SMA", 60))

BUILT_IN_FEATURES.extend(_FEATURES)
