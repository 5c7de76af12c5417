"""From a file of prices to a run that waits for its test: `finrl-pod demo prices.csv`."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.data.splits import make_splits
from finrl_pod.data.store import BUILT_IN, Manifest, Store
from finrl_pod.errors import DataError
from finrl_pod.files import write_text
from finrl_pod.prices import Times
from finrl_pod.promotion.gate import min_bars
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Panel
from finrl_pod_app.evaluation.promotion import check_lengths
from finrl_pod_app.prices.stored_prices import QueryValue, existing, import_prices, store_prices
from finrl_pod_app.report.opening import opening
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.setup.presets import PRESETS, config_text, for_stored_panel

NOT_STATED = "not stated"
CONFIG_FILE = "demo.toml"
BAR_SECONDS = {"1h": 3600, "15m": 900, "1m": 60}  # longest first
MIN_WINDOW = 5  # bars of an episode


def store_file(source: Path, **options: Any) -> Manifest:
    """Import prices and store them under the name of their file, with a part of their hash if others have the name.

    source: a file, or a folder with one file for each ticker. Gaps become untradable bars, and intraday bars are
    recognised. options: others of `ReadOptions`. Raises DataError as `import_prices`.
    """
    try:
        panel, query = _read(source, options)
    except DataError as error:
        if not re.search(r"--(?:bar|memory)\b", str(error)):
            raise
        raise DataError(
            f"{str(error).rstrip('.')}; that is an option of finrl-pod data import FILE --name NAME, and finrl-pod "
            "demo NAME then continues"
        ) from None
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", panel.name).lstrip("._-")[:50] or "prices"
    store = Store()
    is_other = name in BUILT_IN or (store.exists(name) and _sha256(store, name) != panel.sha256)
    panel = dataclasses.replace(panel, name=f"{name}-{panel.sha256[:8]}" if is_other else name)
    return store_prices(panel, query).manifest


def _read(source: Path, options: Mapping[str, Any]) -> tuple[Panel, dict[str, QueryValue]]:
    try:
        return import_prices(source, allow_gaps=True, **options)
    except DataError as error:
        try:  # several bars a day are an error of daily ones
            panel, query = import_prices(source, allow_gaps=True, bar="1m", **options)
        except DataError:
            raise error from None
        bar = intraday_bar(panel.times)
        if bar is None:
            raise error from None
        return (panel, query) if bar == "1m" else import_prices(source, allow_gaps=True, bar=bar, **options)


def intraday_bar(times: Times) -> str | None:
    """The length of the bars at these times [T], the next shorter one that exists; None for bars of a day or more."""
    if len(times) < 2:
        return None
    seconds = float(np.median(np.diff(times).astype("timedelta64[s]").astype(np.float64)))
    return next((bar for bar, length in BAR_SECONDS.items() if length <= seconds < 24 * 3600), None)


def _sha256(store: Store, name: str) -> str:
    manifest = existing(store, name)
    return "" if manifest is None else manifest.sha256


def demo_config(manifest: Manifest, *, quick: bool) -> RunConfig:
    """The config of the demo on stored prices. Raises DataError for prices that are too short for a verdict."""
    preset_name = "minutes" if manifest.bar == "1m" else "laptop"
    preset = PRESETS[preset_name]
    if quick:
        budget = PRESETS["quick"]
        preset = dataclasses.replace(preset, tournament=budget.tournament, cohorts=budget.cohorts)
    store = Store()
    config = for_stored_panel(preset, store, manifest.name)
    times = store.load(manifest.name).times
    try:
        splits = make_splits(times, config.splits)
        check_lengths(config.gate, len(splits.validation), len(splits.test))
    except DataError:
        validation, test = min_bars()
        raise DataError(
            f"{manifest.name} has only {manifest.bars:,} bars, {manifest.start} to {manifest.end}; a demo needs at "
            f"least {validation} bars of validation and {test} of test, each 15% of the days: use a longer history"
        ) from None
    window = max(min(config.environment.window, len(splits.train) // 2), MIN_WINDOW)
    return dataclasses.replace(config, environment=dataclasses.replace(config.environment, window=window))


def with_chosen(config: RunConfig, chosen: str) -> RunConfig:
    """The config with the answer to when and how its symbols were chosen, in words; empty: not stated."""
    answer = " ".join(chosen.split()) or NOT_STATED
    return dataclasses.replace(config, data=dataclasses.replace(config.data, chosen=answer))


def config_to_resume(out: Path) -> RunConfig:
    """The config of a demo that was interrupted. Raises RunError for a folder without a run."""
    return RunDirectory(out).config


@dataclasses.dataclass(frozen=True)
class UntestedDemo:
    """A demo that stopped at validation. config: path of its config file. test_command: spends a look at the test."""

    report: RunReport
    config: Path
    test_command: str

    def to_dict(self) -> dict[str, object]:
        """The report as JSON values, with what the user decides on."""
        power = self.report.detectable
        return {
            **self.report.to_dict(),
            "symbols": len(self.report.data.symbols),
            "chosen": self.report.data.chosen,
            "detectable_difference": None if power is None else power.difference,
            "opening": list(opening(self.report)),
            "config": str(self.config),
            "test_command": self.test_command,
        }


def write_demo(report: RunReport, config: RunConfig, out: Path) -> UntestedDemo:
    """Write the config of a demo into the folder of its run."""
    file = out / CONFIG_FILE
    command = f"finrl-pod tournament {shlex.quote(str(file))} --resume --out {shlex.quote(str(out))}"
    head = f"# Every setting of this demo. The test is unseen; the first look at it is spent by\n# {command}\n\n"
    write_text(file, head + config_text(config))
    return UntestedDemo(report, file, command)
