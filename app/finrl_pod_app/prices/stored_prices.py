"""Prices of commands: import and store them, load them for a config or a run, and find the bars of a backtest."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.panel import between, first_bars, select
from finrl_pod.data.side_tables import (
    Dividends,
    read_actions,
    read_membership,
    with_actions,
    with_dividends_reinvested,
    with_membership,
)
from finrl_pod.data.sources.bounded import ReadLimits, read_bounded
from finrl_pod.data.sources.feature_tables import with_tables
from finrl_pod.data.splits import CALENDAR_SLACK, Span, make_splits
from finrl_pod.data.store import Manifest, PanelVersion, Store, describe
from finrl_pod.errors import ConfigError, DataError, count_text
from finrl_pod.settings.run import BUILT_IN_SPLITS, EnvironmentConfig, RunConfig, SplitConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Panel
from finrl_pod_app.setup.presets import propose_splits, states_splits, with_fitting_splits


def load_panel(config: RunConfig) -> Panel:
    """The panel of a config with its selection of symbols and its tables.

    Raises ConfigError for whole shares or costs per share on adjusted prices, unless the config allows them, and for
    spreads from data that lack them; as `with_tables` for its tables.
    """
    panel = select(Store().load(config.data.name), config.data.symbols)
    check_prices(config.environment, panel)
    return with_tables(panel, config.features.tables)


def check_prices(rules: EnvironmentConfig, panel: Panel) -> None:
    """Raise ConfigError if the rules count shares of adjusted prices and `adjusted_shares` is not set, or charge
    spreads that the panel lacks.
    """
    is_scaled = panel.adjusted or panel.dividend is not None  # with dividends in cash, for splits
    if is_scaled and not rules.adjusted_shares and (rules.whole_shares or rules.per_share):
        name = "whole_shares" if rules.whole_shares else "per_share"
        raise ConfigError(
            f"environment.{name} counts shares, but the prices of {panel.name!r} are adjusted, so past counts differ "
            "from those traded; set environment.adjusted_shares = true to use them anyway"
        )
    if rules.half_spread == "from data":
        _check_spreads(panel)


def _check_spreads(panel: Panel) -> None:
    if panel.spread is None:
        raise ConfigError(
            f'environment.half_spread = "from data" needs spreads, and {panel.name!r} has none; import a column '
            '"spread", or set half_spread = "constant"'
        )
    unknown = (panel.tradable & np.isnan(panel.spread)).sum(0)  # [N]
    incomplete_symbols = [panel.symbols[n] for n in np.flatnonzero(unknown)]
    if incomplete_symbols:
        count = unknown[unknown > 0][0]
        note = f" ({len(incomplete_symbols) - 1} more tickers lack some)" * (len(incomplete_symbols) > 1)
        raise ConfigError(
            f'environment.half_spread = "from data" needs a spread on every bar, but {incomplete_symbols[0]} in '
            f"{panel.name!r} has none on {count} of its bars{note}; complete them, or choose other tickers "
            "with data.symbols"
        )


def backtest_period(
    panel: Panel, start: str | None, end: str | None, splits: SplitConfig | None = None, split: str = "test"
) -> tuple[int, int]:
    """First and last bar of a backtest from `start` to `end`.

    A missing date is taken from `split` ("train", "validation" or "test") of `splits`, or from the data for the split
    "all" and without splits. Raises DataError for invalid dates, a start after the end, dates more than a week outside
    the data, and fewer than two bars.
    """
    is_whole = splits is None or split == "all"
    if start is None and end is None and not is_whole:
        assert splits is not None
        span: Span = getattr(make_splits(panel.times, splits), split)
        return span.first, span.last
    data = pd.Timestamp(panel.times[0]), pd.Timestamp(panel.times[-1])
    split_dates = (None, None) if is_whole else getattr(splits, split)
    opening, closing = start or split_dates[0], end or split_dates[1]
    low = first_moment(opening, "the start") if opening else data[0]
    high = last_moment(closing, "the end") if closing else data[1]
    slack = CALENDAR_SLACK
    if (start and not data[0] - slack <= low <= data[1] + slack) or (
        end and not data[0] - slack <= high.floor("D") <= data[1] + slack
    ):
        dates = " to ".join(([str(low.date())] if start else []) + ([str(high.date())] if end else []))
        raise DataError(
            f"the period {dates} of a backtest exceeds the data, {data[0].date()} to "
            f"{data[1].date()}; choose dates within"
        )
    if low > high:
        raise DataError(
            f"the start {low.date()} of a backtest is after its end {high.date()}: swap the dates, or give both"
        )
    period = between(panel, low, high)
    if len(period.times) < 2:
        raise DataError(f"a backtest needs at least two bars, {low.date()} to {high.date()} has one; widen the dates")
    first = int((panel.times < period.times[0]).sum())
    return first, first + len(period.times) - 1


def splits_of_panel(panel: Panel) -> SplitConfig:
    """Splits of a panel that no config describes: the default ones if they fit, else 70, 15 and 15 percent."""
    first, last = (panel.times[i].astype("datetime64[D]").item() for i in (0, -1))
    return propose_splits(first, last, BUILT_IN_SPLITS.get(panel.name))


def with_stored_splits(config: RunConfig, resumed: Path | None = None) -> RunConfig:
    """The config of a run with the splits that `finrl-pod init` writes for its stored prices, if it states none.

    resumed: folder of a run that keeps its splits, also after bars were appended. Raises DataError without the panel.
    """
    if config.environment.kind == "custom" or config.data.name in BUILT_IN_SPLITS or states_splits(config):
        return config
    if resumed is not None and RunDirectory.is_run(resumed):
        return dataclasses.replace(config, splits=RunDirectory(resumed).config.splits)
    return with_fitting_splits(config, config.data.name, Store().load(config.data.name).times)


QueryValue = str | bool | int | float | Sequence[str] | None  # of a query in a manifest


def import_prices(
    file: Path,
    *,
    limits: ReadLimits | None = None,
    adjusted: bool | None = None,
    members: Path | None = None,
    actions: Path | None = None,
    dividends: Dividends = "cash",
    **options: Any,
) -> tuple[Panel, dict[str, QueryValue]]:
    """Read a file, and the query that repeats it, for the manifest of the panel.

    adjusted: whether the prices in the file are adjusted for splits and dividends; None: no if there are `actions`,
    else as the layout of the file says. members, actions: CSV tables. dividends: how dividends of the actions are paid.
    options: the others of `ReadOptions`. Raises DataError as `read_bounded` and the readers of the tables, for actions
    of adjusted prices, and for two tables of actions.
    """
    if dividends not in get_args(Dividends):
        raise DataError(f"--dividends must be {' or '.join(get_args(Dividends))}, got {dividends!r}")
    if actions is not None and adjusted:
        raise DataError("corporate actions adjust prices as traded; leave out --adjusted, or --actions")
    panel = read_bounded(file, limits, adjusted=adjusted if actions is None else False, **options)
    query = {"file": str(file.resolve()), **options}
    if actions is not None:
        if {"split", "dividend"} & set(panel.read_as.values()):
            raise DataError(f"{file.name} states splits or dividends itself; leave out --actions")
        panel = with_actions(panel, read_actions(actions), dividends)
        query |= {"actions": str(actions.resolve()), "dividends": dividends}
    elif dividends != "cash":
        if panel.dividend is None:
            raise DataError("--dividends is for a table of corporate actions; give the table with --actions")
        panel = with_dividends_reinvested(panel)
        query["dividends"] = dividends
    if members is not None:
        panel = with_membership(panel, read_membership(members))
        query["members"] = str(members.resolve())
    return panel, query


Status = Literal["stored", "unchanged", "replaced"]


@dataclasses.dataclass(frozen=True)
class StoredPrices:
    """Result of `store_prices`. replaced_sha256: hash of the prices that were there before, if they were others."""

    manifest: Manifest
    status: Status
    replaced_sha256: str | None = None


def store_prices(
    panel: Panel,
    query: Mapping[str, QueryValue],
    *,
    replace: bool = False,
    earlier: Sequence[PanelVersion] = (),
) -> StoredPrices:
    """Store under `panel.name`. earlier: versions that the panel begins with.

    Raises DataError if that has other prices, unless `replace`, and as `Store.save`.
    """
    store = Store()
    manifest = existing(store, panel.name)
    if manifest is not None and manifest.sha256 == panel.sha256:
        described = describe(panel, query=dict(query))
        is_same = all(
            getattr(described, field) == getattr(manifest, field) for field in ("query", "source", "flaws", "read_as")
        )
        return StoredPrices(manifest if is_same else store.save(panel, query, manifest.earlier), "unchanged")
    if not replace:
        check_free(store, panel.name)
    new_manifest = store.save(panel, query, earlier)
    return StoredPrices(
        new_manifest, "stored" if manifest is None else "replaced", None if manifest is None else manifest.sha256
    )


def check_free(store: Store, name: str) -> None:
    """Raises DataError if a panel of that name would be replaced."""
    store.check_name(name)
    if not store.exists(name):
        return
    manifest = existing(store, name)
    contents = (
        "a damaged panel"
        if manifest is None
        else f"other prices ({count_text(manifest.bars, 'bar')}, {manifest.start} to {manifest.end})"
    )
    raise DataError(f"{name!r} has {contents} already: choose another --name, or pass --replace")


def existing(store: Store, name: str) -> Manifest | None:
    """The manifest of a stored panel; None without one that can be read."""
    store.check_name(name)
    with contextlib.suppress(DataError):
        return store.show(name) if store.exists(name) else None
    return None


def names_of(store: Store, sha256: str) -> list[str]:
    """Names of the stored panels with these prices."""
    return [manifest.name for manifest in store.list() if manifest.sha256 == sha256 and not manifest.fault]


def consequence(sha256: str) -> str:
    """What it means for runs that prices are no longer stored under their name."""
    if names := names_of(Store(), sha256):
        return f"They are still stored as {names[0]}, where runs made on them find them."
    return "To backtest or audit runs made on them, import the same prices again, under any name."


def panel_to_resume(config: RunConfig, folder: Path) -> Panel:
    """The prices with which a run is resumed: the prices of the run, or of the config if the run has another config.

    Raises as `load_run_panel`.
    """
    run = RunDirectory(folder)
    return load_run_panel(config, run.data_sha256, folder) if run.is_of(config) else load_panel(config)


def load_run_panel(config: RunConfig, sha256: str, run: Path, *, fix: str = "") -> Panel:
    """The prices that a run was made on, under the name in its config or any other name, or before bars were appended.

    sha256: hash of the panel of the run. fix: alternative to name in the message. Raises DataError if the store has
    neither, and as `load_panel`.
    """
    name = config.data.name
    store = Store()
    missing = not store.exists(name)
    if not missing and (panel := load_panel(config)).sha256 == sha256:
        return panel
    for manifest in store.list():
        if manifest.name == name or manifest.fault:
            continue
        # With a selection of symbols only the selected panel has the hash of the run.
        if manifest.sha256 == sha256 or set(config.data.symbols or (None,)) <= set(manifest.symbols):
            renamed_config = dataclasses.replace(config, data=dataclasses.replace(config.data, name=manifest.name))
            if (panel := load_panel(renamed_config)).sha256 == sha256:
                return panel
    for manifest in store.list():
        if (earlier_panel := _earlier_version(config, manifest, sha256)) is not None:
            return earlier_panel
    if missing:
        fault = f"panel {name!r}, on which the run in {run} was made, is no longer stored: import its prices"
    else:
        fault = f"the prices of {name!r} have changed since the run in {run}: import those that it was made on"
    raise DataError(f"{fault} again, under any name{fix}")


def _earlier_version(config: RunConfig, manifest: Manifest, sha256: str) -> Panel | None:
    """The version of a stored panel whose selection of symbols has a hash; None without one."""
    symbols = config.data.symbols
    versions = [version for version in reversed(manifest.earlier) if symbols or version.sha256 == sha256]
    for version in versions if set(symbols) <= set(manifest.symbols) else ():
        panel = first_bars(Store().load(manifest.name), version.bars, version.symbols)
        if set(symbols) <= set(panel.symbols) and (panel := select(panel, symbols)).sha256 == sha256:
            check_prices(config.environment, panel)
            return with_tables(panel, config.features.tables)
    return None
