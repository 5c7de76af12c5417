"""Ready-made configs, and the commented TOML text that `finrl-pod init` writes."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finrl_pod.errors import ConfigError
from finrl_pod.prices import Times
from finrl_pod.settings.algorithm_configs import AgentConfig, AnalyticConfig
from finrl_pod.settings.constraints import describe_settings
from finrl_pod.settings.run import (
    BUILT_IN_SPLITS,
    DataConfig,
    EnvironmentConfig,
    FeatureConfig,
    MandateConfig,
    PPOConfig,
    RunConfig,
    SplitConfig,
    TournamentConfig,
)
from finrl_pod.settings.toml import closest_key, record_lines, value_text

if TYPE_CHECKING:
    from finrl_pod.data.store import Manifest, Store

# The default agent: the linear policy of ten price features that is solved on the training split, and agents trained
# from it by gradients through the market, the only algorithm that the study in docs/results.md has measured so far.
FEATURES = FeatureConfig(
    (
        "momentum_252_21",
        "momentum_126_21",
        "return_21",
        "return_5",
        "volatility_252",
        "beta_252",
        "idiosyncratic_252",
        "residual_momentum",
        "trend_200",
        "drawdown_252",
    )
)
FROM_SOLVED = AnalyticConfig(
    start="closed_form", horizon=32, learning_rate=0.03, exploration_noise=0.0, weight_decay=1.0
)
PPO_FROM_SOLVED = PPOConfig(start="closed_form", learning_rate=0.001, weight_decay=1.0)


def _environment(envs: int, group: int) -> EnvironmentConfig:
    return EnvironmentConfig(reward="mean_variance", risk_aversion=5.0, envs=envs, group=group)


PRESETS: Mapping[str, RunConfig] = {
    "laptop": RunConfig(
        features=FEATURES,
        environment=_environment(16, 1),
        agent=FROM_SOLVED,
        tournament=TournamentConfig(pods=4, generations=2, samples_per_generation=20_000),
    ),
    "gpu": RunConfig(
        features=FEATURES,
        environment=_environment(1024, 16),
        agent=dataclasses.replace(PPO_FROM_SOLVED, hidden=(64, 64)),
        tournament=TournamentConfig(
            pods=32, generations=12, samples_per_generation=1_000_000, leaderboard=64, champion=8
        ),
    ),
    "quick": RunConfig(
        features=FEATURES,
        environment=_environment(32, 2),
        agent=FROM_SOLVED,
        cohorts=(PPO_FROM_SOLVED,),
        tournament=TournamentConfig(pods=4, generations=2, samples_per_generation=5_000, leaderboard=8, champion=4),
    ),
    # Trading at every minute would pay for the spread hundreds of times a day: one decision a session of 390 bars.
    "minutes": RunConfig(
        features=FEATURES,
        environment=dataclasses.replace(_environment(32, 2), window=1_950),
        mandate=MandateConfig(decide_every=390, max_turnover=12.0),
        agent=FROM_SOLVED,
        tournament=TournamentConfig(pods=4, generations=2, samples_per_generation=20_000),
    ),
}

PURPOSES: Mapping[str, str] = {
    "laptop": "one to three minutes on two CPU cores; what `finrl-pod demo` runs",
    "gpu": "a larger population for one CUDA device",
    "minutes": "bars of one minute: one decision a session, at most 12 times the account a year in trades",
    "quick": "every stage within a minute, to check that it works; too short to learn much",
}


# Cost of the presets on the panel us74: spreads are charged by asset and day.
US74_COST_BPS = 5.0
# The settings that users change first, by section; others are written if they differ from their defaults.
CHANGED_FIRST: Mapping[str, tuple[str, ...]] = {
    "": ("seed",),
    "data": ("name",),
    "splits": ("train", "validation", "test"),
    "environment": ("cost_bps", "cash"),
    "mandate": ("base", "tilt", "trade_speed", "max_turnover"),
    "tournament": ("pods", "generations", "samples_per_generation", "search"),
    "gate": ("significance_level",),
}
MAX_WARM_UP = 1 / 6  # share of the bars of a panel that features may look back
SHORT_FEATURES = ("return_1", "return_5", "return_21", "volatility_21")
# Windows of features whose name does not have them, by its start.
UNNAMED_WINDOWS: Mapping[str, int] = {"residual_momentum": 252, "turbulence": 253, "macd": 34, "boll": 20}
TRAIN, VALIDATION = 0.70, 0.15  # shares of the days if the default splits do not fit the data; the rest is the test


def preset(name: str, data: str | None = None) -> RunConfig:
    """A preset by name, for the panel `data` of the store (see `for_panel`).

    Raises ConfigError for an unknown preset, DataError for an unknown panel.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; {closest_key(name, PRESETS)}")
    config = PRESETS[name]
    if data is None or data == config.data.name:
        return config
    from finrl_pod.data.store import Store  # loads torch: not needed by pages of the dashboard

    return for_stored_panel(config, Store(), data)


def for_stored_panel(config: RunConfig, store: Store, name: str) -> RunConfig:
    """The config on a stored panel, with splits whose dates are bars of it. Raises DataError for an unknown panel."""
    panel_config = for_panel(config, store.show(name))
    if name in BUILT_IN_SPLITS:
        return panel_config
    return dataclasses.replace(panel_config, splits=on_trading_days(panel_config.splits, store.load(name).times))


def for_panel(config: RunConfig, panel: Manifest) -> RunConfig:
    """The config on another panel: splits and features that fit it, and its market rules if it is built in."""
    splits = propose_splits(
        date.fromisoformat(panel.start[:10]), date.fromisoformat(panel.end[:10]), BUILT_IN_SPLITS.get(panel.name)
    )
    environment = config.environment
    if panel.name == "us74":
        environment = dataclasses.replace(environment, cost_bps=US74_COST_BPS, half_spread="from data")
    return dataclasses.replace(
        config,
        data=DataConfig(panel.name),
        features=dataclasses.replace(config.features, names=fitting_features(config.features.names, panel)),
        splits=dataclasses.replace(splits, embargo=config.splits.embargo),
        environment=environment,
    )


def fitting_features(names: Sequence[str], panel: Manifest) -> tuple[str, ...]:
    """The features whose windows leave most of the panel for training; short ones if none does.

    A window may take a sixth of the bars: the first decision needs all features, and training has 70% of the bars.
    """
    limit = panel.bars * MAX_WARM_UP
    fitting = tuple(name for name in names if _window(name) <= limit)
    return fitting or tuple(name for name in SHORT_FEATURES if _window(name) <= limit) or SHORT_FEATURES[:1]


def _window(name: str) -> int:
    """Bars that a built-in feature looks back, from its name; 0 for a custom one and for one of a table."""
    if ":" in name or "." in name:
        return 0
    named = (bars for start, bars in UNNAMED_WINDOWS.items() if name.startswith(start))
    return next(named, max(map(int, re.findall(r"\d+", name)), default=0))


def propose_splits(first: date, last: date, default: SplitConfig | None = None) -> SplitConfig:
    """The splits `default` (or of the settings) if the data covers them, else 70, 15 and 15 percent of the days.

    first, last: the days that the data covers.
    """
    default = default or SplitConfig()
    if first.isoformat() <= default.train[0] and last.isoformat() >= default.test[0]:
        return default
    days = (last - first).days
    ends = [*(first + timedelta(days=round(share * days)) for share in (TRAIN, TRAIN + VALIDATION)), last]
    starts = [first, *(end + timedelta(days=1) for end in ends[:2])]
    train, validation, test = ((start.isoformat(), end.isoformat()) for start, end in zip(starts, ends, strict=True))
    return SplitConfig(train, validation, test)


def states_splits(config: RunConfig) -> bool:
    """Whether a config names its splits: other dates than the defaults of its prices."""
    default = BUILT_IN_SPLITS.get(config.data.name, SplitConfig())
    return dataclasses.replace(config.splits, embargo=default.embargo) != default


def with_fitting_splits(config: RunConfig, name: str, times: Times) -> RunConfig:
    """The config with the splits that `finrl-pod init` writes for these prices, if it states none.

    name, times: panel and its bars.
    """
    if states_splits(config):
        return config
    first, last = (times[i].astype("datetime64[D]").item() for i in (0, -1))
    splits = propose_splits(first, last, BUILT_IN_SPLITS.get(name))
    if name not in BUILT_IN_SPLITS:
        splits = on_trading_days(splits, times)
    return dataclasses.replace(config, splits=dataclasses.replace(splits, embargo=config.splits.embargo))


def on_trading_days(splits: SplitConfig, times: Times) -> SplitConfig:
    """The same splits with dates on which there are bars: the first and last of each. times: [T] of the panel."""
    days = np.unique(times.astype("datetime64[D]"))

    def first_and_last(span: tuple[str, str]) -> tuple[str, str]:
        days_inside = days[(days >= np.datetime64(span[0])) & (days <= np.datetime64(span[1]))]
        return (str(days_inside[0]), str(days_inside[-1])) if days_inside.size else span

    return dataclasses.replace(
        splits,
        train=first_and_last(splits.train),
        validation=first_and_last(splits.validation),
        test=first_and_last(splits.test),
    )


def preset_text(name: str, data: str | None = None, path: Path | None = None, *, full: bool = False) -> str:
    """Commented TOML of a preset. path: config file, for the first lines. full: with settings at their defaults."""
    config = preset(name, data)
    head = f"# finrl_pod, preset {name}: {PURPOSES[name]}.\n# {tournament_command(path)}\n"
    if full:
        return f"{head}\n{config_text(config)}"
    hint = "# Settings that are not here have their defaults: finrl-pod init --full FILE.toml lists all with comments."
    return f"{head}{hint}\n\n{short_config_text(config)}"


def tournament_command(path: Path | None) -> str:
    file, stem = ("THIS_FILE", "mine") if path is None else (shlex.quote(str(path)), path.stem)
    return f"finrl-pod tournament {file} --out {shlex.quote(f'runs/{stem}')}"


def config_text(config: RunConfig) -> str:
    """Commented TOML of any config: plain settings first, then one table per section and per cohort."""
    blocks = ["\n".join(record_lines(config))]
    blocks += ["\n".join([*header, *record_lines(record)]) for _, header, record in _tables(config)]
    return "\n\n".join([*blocks, *_groups_block(config)]) + "\n"


def _groups_block(config: RunConfig) -> list[str]:
    """The table of the groups of a mandate; none for one without."""
    lines = [f"{value_text(group.name)} = {value_text(group.symbols)}" for group in config.mandate.groups]
    return ["\n".join(["# Groups of symbols for the mandate.", "[groups]", *lines])] if lines else []


def _tables(config: RunConfig) -> Iterator[tuple[str, list[str], Any]]:
    """Name, comment and header, and record of each section and cohort."""
    for name, item in describe_settings(RunConfig).items():
        values = getattr(config, name)
        for record in values if name == "cohorts" else [values]:
            if dataclasses.is_dataclass(record):
                yield name, [f"# {item.comment}", f"[[{name}]]" if name == "cohorts" else f"[{name}]"], record


def short_config_text(config: RunConfig) -> str:
    """Commented TOML of the settings that users change first, then of the others that differ from their defaults."""
    first = ["\n".join(record_lines(config, {*CHANGED_FIRST[""], *_changed_names(config)}))]
    rare_blocks: list[str] = []
    for name, header, record in _tables(config):
        important = CHANGED_FIRST.get(name, ())
        lines = [*record_lines(record, important)]
        rare_lines = [*record_lines(record, _changed_names(record) - {*important})]
        if lines or rare_lines:
            heading = ["# rarely changed:"] if lines and rare_lines else []
            (first if important else rare_blocks).append("\n".join([*header, *lines, *heading, *rare_lines]))
    return "\n\n".join([*first, "# ---------- rarely changed ----------", *rare_blocks, *_groups_block(config)]) + "\n"


def _changed_names(record: Any) -> set[str]:
    """Names of the settings of a record whose values `parse` does not give to a record without them."""
    default_records: list[Any]
    if isinstance(record, AgentConfig):
        default_records = [type(record)(algorithm=record.algorithm)]
    elif isinstance(record, SplitConfig):  # built-in panels have splits of their own
        default_records = [SplitConfig(), *BUILT_IN_SPLITS.values()]
    else:
        default_records = [type(record)()]
    names = {item.name for item in dataclasses.fields(record) if item.name != "cohorts"}
    changed_names = {
        name for name in names if any(getattr(record, name) != getattr(default, name) for default in default_records)
    }
    return changed_names | ({"algorithm"} if isinstance(record, AgentConfig) else set())


def write_preset(name: str, path: Path, data: str | None = None, *, full: bool = False) -> None:
    """Write a preset to a new file; see `write_config`."""
    write_config(preset_text(name, data, path, full=full), path)


def write_config(text: str, path: Path) -> None:
    """Write a config to a new file. Raises ConfigError when the file exists already or cannot be written."""
    try:
        # Mode "x" rather than a check first: a file created in between is not overwritten.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise ConfigError(f"{path} already exists; choose another name or remove it") from None
    except FileNotFoundError:
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}; create it first") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
