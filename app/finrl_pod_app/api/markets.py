"""Prices, configs and markets of `import finrl_pod as fp`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from finrl_pod.arguments import check_arguments
from finrl_pod.data.panel import between, select
from finrl_pod.data.sources.feature_tables import with_tables
from finrl_pod.data.sources.files import read_file, read_frame
from finrl_pod.data.sources.read_options import ReadOptions
from finrl_pod.data.sources.tables import without_suffix
from finrl_pod.data.store import Store, describe
from finrl_pod.errors import ConfigError, DataError
from finrl_pod.settings.run import FeatureConfig, RunConfig, load, parse
from finrl_pod.types import Panel
from finrl_pod_app.api import setup as api
from finrl_pod_app.prices.stored_prices import names_of
from finrl_pod_app.setup.overrides import apply_settings, override_config
from finrl_pod_app.setup.presets import PRESETS, for_panel, preset, with_fitting_splits

Prices = Annotated[
    Panel | pd.DataFrame | str | Path,
    "a panel, a DataFrame (of a Series: .to_frame(TICKER)), a file or the name of a stored panel",
]
ConfigSource = Annotated[RunConfig | str | Path, f"a RunConfig, a TOML file or a preset ({', '.join(PRESETS)})"]
Settings = Annotated[Mapping[str, Any], 'a dict such as {"tournament.pods": 4}']
DEFAULT_PRESET = "laptop"
FRAME = "frame"  # name of a panel made from a DataFrame


@check_arguments
def load_prices(
    source: Prices,
    *,
    symbols: Sequence[str] = (),
    start: str | None = None,
    end: str | None = None,
    name: str = FRAME,
    **options: Any,
) -> Panel:
    """Prices as a panel.

    source: a DataFrame of closes with dates as its index and one column for each ticker, a long one with columns date
    (or time), symbol, close and optionally open, high, low, volume, or one of yfinance (download, or Ticker.history
    with symbol=TICKER); the name of a stored panel; or a CSV or Parquet file.
    symbols, start, end: a selection. name: panel name of a DataFrame. options: options of `finrl-pod data import`, such
    as bar="1h", adjusted=False, allow_gaps=True. Raises DataError for prices that cannot be used, InputError for other
    objects and unknown options.
    """
    ReadOptions.from_keywords(options)
    if isinstance(source, Panel):
        panel = source
    elif isinstance(source, pd.DataFrame):
        panel = read_frame(source, name=name, **options)
    elif (path := Path(source)).suffix or path.is_dir():
        panel = dataclasses.replace(read_file(path, **options), name=without_suffix(path.name))
    else:
        panel = Store().load(str(source))
    panel = select(panel, (symbols,) if isinstance(symbols, str) else tuple(symbols))
    return between(panel, start, end) if start or end else panel


@check_arguments
def make_market(
    prices: Prices = "sample",
    config: ConfigSource | None = None,
    *,
    settings: Settings | None = None,
    cost_bps: float | None = None,
) -> api.Setup:
    """A market to train on: prices with splits, features and rules.

    config: a RunConfig, a TOML file, or a preset ("laptop", the default as on the command line, "quick", "gpu" or
    "minutes"). Splits and features that it does not set fit the prices. settings: values instead of the config, such as
    {"agent.learning_rate": 1e-3, "environment.delay": 2}. cost_bps: cost of a trade in basis points of its value.
    Raises as `api.prepare`, ConfigError for an unknown setting.
    """
    panel = load_prices(prices)
    market_config = load_config(DEFAULT_PRESET if config is None else config)
    fitted_config = for_panel(market_config, describe(panel))
    if config is None or (isinstance(config, str) and config in PRESETS):
        market_config = fitted_config
    else:
        market_config = with_fitting_splits(market_config, panel.name, panel.times)
        if market_config.features == FeatureConfig():
            market_config = dataclasses.replace(market_config, features=fitted_config.features)
    market_config = with_settings(market_config, settings, cost_bps)
    panel = select(panel, market_config.data.symbols)
    try:
        return api.prepare(market_config, panel=panel)
    except ConfigError as error:
        if config is not None or settings:
            raise
        bars = len(panel.times)
        raise DataError(
            f"the default settings do not fit the {bars:,} bars of {panel.name!r} ({error}): use more bars or a config"
        ) from None


def with_settings(config: RunConfig, settings: Settings | None, cost_bps: float | None) -> RunConfig:
    """The config with the arguments `settings` and `cost_bps`."""
    config = override_config(config, cost_bps=cost_bps)
    return apply_settings(config, list((settings or {}).items()), "settings")


@check_arguments
def load_config(config: ConfigSource) -> RunConfig:
    """A TOML file, or a preset by name, as a RunConfig.

    Raises ConfigError for an invalid file and an unknown preset.
    """
    if isinstance(config, RunConfig):
        return parse(dataclasses.asdict(config), "the config")  # checks types at run time
    path = Path(config)
    return preset(str(config)) if isinstance(config, str) and not path.suffix and not path.is_file() else load(path)


def stored_panel(panel: Panel) -> str:
    """Name under which the store has the prices of a panel; they are saved if they are not there.

    They never take the place of others. Tables are not stored with them. Raises DataError if the store has other prices
    of that name, unless they came from a DataFrame without a name.
    """
    store = Store()
    if names := names_of(store, panel.sha256):
        return panel.name if panel.name in names else names[0]
    if store.exists(panel.name):
        if panel.name != FRAME:
            raise DataError(
                f"the store has other prices named {panel.name!r}: give these another name, such as "
                "fp.load_prices(frame, name='mine')"
            )
        panel = dataclasses.replace(panel, name=f"{FRAME}-{panel.sha256[:8]}")
    store.save(with_tables(panel, ()), {"source": "Python"})
    return panel.name
