"""Settings of a run: one TOML file, frozen records, unknown keys refused.

All settings have defaults; the presets of `finrl-pod init` differ from them in features, rewards and agents. Files are
validated by pydantic, imported only then; the records are plain dataclasses.
"""

# ruff: noqa: RUF009 (setting() and section() return dataclass fields)

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from finrl_pod.errors import ConfigError
from finrl_pod.settings.algorithm_configs import AgentConfig, PPOConfig
from finrl_pod.settings.algorithm_registry import ALGORITHMS, algorithm_info
from finrl_pod.settings.constraints import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE_FINITE,
    Constraint,
    Setting,
    above_and_at_most,
    at_least,
    at_least_and_below,
    between,
    check_setting,
    check_settings,
    check_value,
    describe_settings,
    section,
    setting,
)
from finrl_pod.settings.toml import build_record, other_name, read_toml

__all__ = [
    "BUILT_IN_SPLITS",
    "MAX_SEED",
    "AgentConfig",
    "DataConfig",
    "EnvironmentConfig",
    "FeatureConfig",
    "GateConfig",
    "GroupConfig",
    "MandateConfig",
    "PPOConfig",
    "RunConfig",
    "SplitConfig",
    "TableConfig",
    "TournamentConfig",
    "describe_setting",
    "load",
    "parse",
]

OF_DAEMONS = ("strategy", "run", "champion", "strategies", "broker", "schedule", "journal", "monitoring")
MAX_SEED = 2**63 - 1  # the limit of torch.Generator and of int64
MAX_THREADS = 1024
TORCH_ON_GPU = "slower on a GPU, where torch then steps the market"  # what the kernel of a step lacks
MAX_DELAY = 1_000  # bars; pending targets of that many bars are kept for every account


@dataclass(frozen=True)
class DataConfig:
    """Panel and symbols."""

    name: str = setting("sample", 'panel of the store; "sample" and "us74" are built in')
    symbols: tuple[str, ...] = setting((), "symbols of the panel to use; empty: all")
    chosen: str = setting("", "when and how the symbols were chosen, in words; shown in reports")


@dataclass(frozen=True)
class SplitConfig:
    """First and last date of each split."""

    train: tuple[str, str] = setting(("1990-01-02", "2015-12-31"), "agents and normalisers are fitted on these bars")
    validation: tuple[str, str] = setting(
        ("2016-01-01", "2018-12-31"), "ranks the leaderboard and selects the champion"
    )
    test: tuple[str, str] = setting(("2019-01-01", "2022-12-31"), "used once, for the report")
    embargo: int = setting(5, "bars dropped from the end of train and of validation: rewards stay inside")


# Splits of configs that name a built-in panel but no splits.
BUILT_IN_SPLITS: Mapping[str, SplitConfig] = {
    "sample": SplitConfig(),
    "us74": SplitConfig(("2000-01-04", "2015-12-31"), ("2016-01-01", "2019-09-30"), ("2019-10-01", "2023-09-26")),
}


@dataclass(frozen=True)
class TableConfig:
    """A table of values of the user, an item of features.tables. See `finrl_pod.data.sources.feature_tables`."""

    PINNED_FIELDS: ClassVar[tuple[str, ...]] = ("file",)  # a run keeps their files, see `finrl_pod.user_files`

    file: str = setting("", "CSV file with known_at, perhaps symbol and period, and columns of values")
    max_age_days: float = setting(0.0, "days after which a value is too old to be used; 0: never", at_least(0))


@dataclass(frozen=True)
class FeatureConfig:
    """Observed features."""

    names: tuple[str, ...] = setting(
        (
            "return_1",
            "return_5",
            "return_21",
            "return_63",
            "momentum_252_21",
            "volatility_21",
            "volatility_63",
            "return_1_rank",
            "return_21_rank",
            "momentum_252_21_rank",
            "volatility_63_rank",
            "market_return_21",
            "breadth_50",
        ),
        "registered features and columns of tables, in order",
    )
    tables: tuple[TableConfig, ...] = setting(
        (),
        'tables of your own, such as [{file = "macro.csv", max_age_days = 45}], whose columns are features named '
        "macro.COLUMN; see docs/tutorials/tables.md",
    )


@dataclass(frozen=True)
class EnvironmentConfig:
    """Market rules. `half_spread` to `cash_rates`: frictions, see `finrl_pod.market.costs.Frictions`."""

    kind: Literal["portfolio", "stock_trading", "discrete", "custom"] = setting(
        "portfolio",
        "actions: target weights, shares to trade scaled by hmax, or one choice (hold, buy one, sell one); custom: no "
        "market, but a custom environment; only source, evaluation_episodes and envs are settings",
    )
    source: str = setting("", "custom: the environment as file.py:Class; see docs/environments.md")
    evaluation_episodes: int = setting(32, "custom: episodes whose mean return scores an agent", at_least(1))
    cost_bps: float = setting(
        10.0, "cost of a trade in basis points of its value, each side", at_least_and_below(0, 10_000)
    )
    cash: float = setting(1_000_000.0, "starting cash, in the currency of the prices", POSITIVE_FINITE)
    window: int = setting(252, "bars per episode", at_least(1))
    reward: str = setting("log_return", "reward of a step, from one fill to the next; see docs/objectives.md")
    risk_aversion: float = setting(5.0, "mean_variance: relative risk aversion; 1: log growth", at_least(1))
    fill: Literal["next", "same_close"] = setting(
        "next", "next: fills at the next open (close if there are no opens); same_close: only for comparisons"
    )
    buy_allocation: Literal["proportional", "sequential"] = setting(
        "proportional",
        "if buys exceed the cash: scale all by one factor, or fill one by one, the largest first; sequential: "
        f"{TORCH_ON_GPU}",
    )
    whole_shares: bool = setting(False, "truncate trades to whole shares")
    short: bool = setting(False, f"allow short positions; {TORCH_ON_GPU}")
    leverage: float = setting(
        1.0, f"limit on gross exposure as a multiple of equity; other than 1: {TORCH_ON_GPU}", POSITIVE_FINITE
    )
    hmax: float = setting(100.0, "stock_trading: shares traded by a full action", POSITIVE_FINITE)
    turbulence_limit: float = setting(0.0, "liquidate while turbulence is above it; 0: off", NOT_NEGATIVE)
    half_spread: Literal["constant", "from data", "by era"] = setting(
        "constant",
        "charged on every fill: half_spread_bps, half the quoted spread of the asset in the bar of the fill, or 70, 40 "
        "and 20 basis points on bars before 1980, 1990 and 2001 (an assumption)",
    )
    half_spread_bps: float = setting(
        0.0, "constant: half of the quoted spread in basis points of the price", at_least_and_below(0, 10_000)
    )
    per_share: float = setting(0.0, f"commission per share, in currency; {TORCH_ON_GPU}", at_least(0))
    per_share_minimum: float = setting(0.0, f"minimum commission per order, in currency; {TORCH_ON_GPU}", at_least(0))
    cost_model: str = setting("", f"a further cost of every fill: a custom file.py:Class; empty: none; {TORCH_ON_GPU}")
    impact: float = setting(
        0.0,
        f"square-root market impact: impact * volatility * sqrt(order / volume of the bar); {TORCH_ON_GPU}",
        at_least(0),
    )
    participation: float = setting(
        0.0, f"maximum share of the bar volume that fills, the rest lapses; 0: no limit; {TORCH_ON_GPU}", FRACTION
    )
    borrow_fee: float = setting(
        0.0, f"annual fee as a share of the value of short positions; {TORCH_ON_GPU}", at_least(0)
    )
    delisting_return: float = setting(
        0.0, "return from the last close of a delisted ticker to its payout; -0.3: 30% less", at_least(-1)
    )
    delay: int = setting(1, f"bars from a decision to its fill; above 1: {TORCH_ON_GPU}", between(1, MAX_DELAY))
    cash_rates: tuple[tuple[str, float], ...] = setting(
        (), f'annual interest rate of cash from each date, such as [["2019-01-01", 0.02]]; {TORCH_ON_GPU}'
    )
    tax_short: float = setting(
        0.0, "tax rate on gains of shares held for a year or less, for the return after tax of backtests", FRACTION
    )
    tax_long: float = setting(0.0, "tax rate on gains of shares held for more than a year", FRACTION)
    adjusted_shares: bool = setting(
        False, "allow whole shares and costs per share on adjusted prices; their share counts are not the real ones"
    )
    envs: int = setting(256, "environments per member", at_least(1))
    group: int = setting(16, "environments that share a window of time", at_least(1))


@dataclass(frozen=True)
class GroupConfig:
    """A group of assets, a line of [groups]."""

    name: str = setting("", "name of the group")
    symbols: tuple[str, ...] = setting((), "its symbols")


@dataclass(frozen=True)
class MandateConfig:
    """Bounds on what every agent may hold and trade: a tilt of a base portfolio. See `finrl_pod.market.mandate`."""

    base: str = setting(
        "equal_weight",
        'base portfolio: "none" for unconstrained weights, or a strategy such as "equal_weight", "inverse_volatility", '
        '"minimum_variance", "hierarchical_risk_parity", or file.py:Class of one\'s own',
    )
    tilt: float = setting(0.5, "largest tilt: a base weight is multiplied by exp(-tilt) to exp(tilt)", between(0, 10))
    trade_speed: float = setting(
        0.05, "share of the gap to the desired weights that is traded at a decision", above_and_at_most(0, 1)
    )
    max_weight: float = setting(1.0, "limit on the desired weight of an asset", above_and_at_most(0, 1))
    max_turnover: float = setting(
        0.0, "limit on turnover, one-sided, a year (half the sum of absolute weight changes); 0: off", at_least(0)
    )
    decide_every: int | Literal["week", "month"] = setting(
        1,
        'bars between decisions, or "week" or "month" for the first bar of each',
        Constraint('1 or more, "week" or "month"', lambda x: x in ("week", "month") or (isinstance(x, int) and x >= 1)),
    )
    volatility_target: float = setting(
        0.0, f"annual volatility above which weights are scaled into cash; 0: off; {TORCH_ON_GPU}", at_least(0)
    )
    max_holdings: int = setting(0, f"largest number of assets that are held; 0: off; {TORCH_ON_GPU}", at_least(0))
    min_position: float = setting(
        0.0, f"smallest weight of an asset that is held; 0: off; {TORCH_ON_GPU}", between(0, 1)
    )
    max_group_weight: float = setting(
        1.0, f"limit on the weight of each group of [groups]; {TORCH_ON_GPU}", above_and_at_most(0, 1)
    )
    group_neutral: bool = setting(
        False, f"tilts move weight within groups only; a group keeps its weight in the base; {TORCH_ON_GPU}"
    )
    groups: tuple[GroupConfig, ...] = setting((), 'written as a section of its own, [groups] with name = ["A", "B"]')


MAX_ROOT_SHARE = 0.25  # of a leaderboard: descendants of one root


@dataclass(frozen=True)
class TournamentConfig:
    """Population, budget and selection."""

    pods: int = setting(8, "agents trained side by side", at_least(1))
    generations: int = setting(6, "rounds of training and ranking", at_least(1))
    samples_per_generation: int = setting(100_000, "environment steps per pod and generation", at_least(1))
    leaderboard: int = setting(16, "entries kept", at_least(1))
    exploit_fraction: float = setting(0.5, "share of pods that start a generation from the leaderboard", FRACTION)
    reinit_fraction: float = setting(0.125, "share of pods that start from new weights; the rest continue", FRACTION)
    search: Literal["full", "narrow", "off"] = setting(
        "full", "hyperparameters that are searched: all, without entropy and value coefficient, or none"
    )
    selection: Literal["cross_validated", "greedy", "best", "all"] = setting(
        "cross_validated",
        "members of the champion: the best, all, greedy (added while the ensemble improves), or what is best on folds",
    )
    champion: int = setting(
        4, "number of best agents in the champion; greedy selection starts from them and adds others", at_least(1)
    )
    ensemble: Literal["mean", "sharpe", "vote"] = setting(
        "mean", "target weights: mean, mean by validation Sharpe ratio, or vote (median; majority for choices)"
    )
    scheduler: Literal["generational", "asynchronous"] = setting(
        "generational", "rank all pods after each generation, or each group of pods when its results arrive"
    )
    batch_pods: int = setting(
        0, "pods that train as one batch on a shard; 0: all of a cohort, or fewer to keep all shards busy", at_least(0)
    )
    seconds: float = setting(
        0.0,
        "wall-clock limit, shared equally by cohorts; 0: off (a limit makes results depend on the machine)",
        at_least(0),
    )


@dataclass(frozen=True)
class GateConfig:
    """What a champion must show to be promoted; all rules must pass."""

    significance_level: float = setting(
        0.025,
        "probability of promoting a champion without an edge at the first look at test; look n has 2 / (n (n + 1)) of "
        "it, so that all looks together stay below twice this number",
        above_and_at_most(0, 0.5),
    )
    minimum_edge: float = setting(
        0.0025, "smallest active return and alpha on test that matter, per year; 0.0025: 0.25%", at_least(0)
    )


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on."""

    seed: int = setting(0, "all random numbers of the run derive from it", between(0, MAX_SEED))
    threads: int = setting(0, "CPU threads; 0: one per core", between(0, MAX_THREADS))
    data: DataConfig = section(DataConfig, "Prices: `finrl-pod data list` shows the stored panels.")
    splits: SplitConfig = section(
        SplitConfig, "First and last date of each split. Nothing is fitted or selected on test."
    )
    features: FeatureConfig = section(
        FeatureConfig, "Observed features of each asset, known at the close of the decision bar."
    )
    environment: EnvironmentConfig = section(EnvironmentConfig, "Market rules.")
    mandate: MandateConfig = section(
        MandateConfig, 'Bounds on what every agent may hold and trade; base = "none" lifts them all.'
    )
    agent: AgentConfig = section(
        PPOConfig, "Learning algorithm and its settings: `finrl-pod algorithms` lists the algorithms."
    )
    tournament: TournamentConfig = section(TournamentConfig, "Population, budget and champion selection.")
    gate: GateConfig = section(GateConfig, "Thresholds for promotion.")
    cohorts: tuple[AgentConfig, ...] = setting(
        (), "Pods of another algorithm or other settings, on the same leaderboard; pods are dealt out in turn."
    )

    def agent_of(self, slot: int) -> AgentConfig:
        """Settings of the agent in this slot of the tournament."""
        agents = (self.agent, *self.cohorts)
        return agents[slot % len(agents)]

    @property
    def sha256(self) -> str:
        """SHA-256 of all settings as JSON."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()


def describe_setting(path: str) -> Setting:
    """Declaration of a setting by its dotted name, such as "gate.max_pbo". Raises KeyError for an unknown one.

    "agent.NAME" is looked up in the settings of all algorithms.
    """
    section_name, _, name = path.rpartition(".")
    if not section_name:
        return describe_settings(RunConfig)[name]
    if section_name != "agent":
        return describe_settings(type(getattr(RunConfig(), section_name)))[name]
    for info in ALGORITHMS.values():
        if name in (settings := describe_settings(info.config_class)):
            return settings[name]
    raise KeyError(path)


def parse(values: dict[str, Any], source: str = "config") -> RunConfig:
    """Build a config from plain values (of TOML or JSON). Raises ConfigError for the first invalid one.

    Keys, types, seed and threads are checked here; `check_settings` checks the other constraints before a run.
    source: source of the values, for messages.
    """
    config_values = dict(values)
    if daemon_sections := [name for name in OF_DAEMONS if name in config_values]:
        raise ConfigError(
            f"{source} is the config of the paper-trading daemon: it has {daemon_sections[0]}. Run it with "
            "finrl-pod paper run; "
            "a config for training is written by finrl-pod init"
        )
    if "agent" in config_values:
        config_values["agent"] = _parse_agent(config_values["agent"], "agent", source)
    if isinstance(config_values.get("cohorts"), list | tuple):
        config_values["cohorts"] = tuple(
            _parse_agent(agent, f"cohorts.{i}", source) for i, agent in enumerate(config_values["cohorts"])
        )
    mandate = config_values.get("mandate", {})
    if "groups" in config_values and isinstance(mandate, dict):
        groups = _parse_groups(config_values.pop("groups"), source)
        config_values["mandate"] = {**mandate, "groups": groups}
    data = config_values.get("data")
    splits = config_values.get("splits", {})
    if isinstance(data, dict) and isinstance(splits, dict) and data.get("name") in BUILT_IN_SPLITS:
        config_values["splits"] = {**dataclasses.asdict(BUILT_IN_SPLITS[data["name"]]), **splits}
    config: RunConfig = build_record(RunConfig, config_values, source)
    if not config.features.names:
        raise ConfigError(f"{source}: features.names is empty; name at least one feature, or leave it out")
    for name in ("seed", "threads"):
        check_setting(f"{source}: ", config, name, getattr(config, name))
    return config


def _parse_agent(values: Any, setting_name: str, source: str) -> AgentConfig:
    """The settings record of the algorithm that the values name."""
    if isinstance(values, AgentConfig):
        return values
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: {setting_name} must be a table of settings, got {values!r}")
    name = values.get("algorithm", RunConfig().agent.algorithm)
    try:
        if not isinstance(name, str):
            raise ConfigError(f"there is no algorithm {name!r}; give one name")
        record = algorithm_info(name).config_class
    except ConfigError as error:
        raise ConfigError(f"{source}: {setting_name}.algorithm: {error}") from None
    for key in values:
        owners = [info.name for info in ALGORITHMS.values() if key in describe_settings(info.config_class)]
        if owners and key not in describe_settings(record):
            hint = other_name(key, describe_settings(record))
            other = "" if hint is None else f" but {hint}"
            raise ConfigError(
                f"{source}: unknown key {setting_name}.{key}; it is a setting of {', '.join(owners)}, "
                f"and {name} has no such setting{other}"
            )
    config_values = {**values, "algorithm": name}
    agent: AgentConfig = build_record(record, config_values, source, section_name=setting_name)
    return agent


def _parse_groups(values: Any, source: str) -> tuple[GroupConfig, ...]:
    """The groups of a table of lists of symbols."""
    if not isinstance(values, dict):
        raise ConfigError(
            f'{source}: groups must be a section with lines such as technology = ["AAPL"], got {values!r:.80}'
        )
    return tuple(
        build_record(GroupConfig, {"name": name, "symbols": symbols}, source, section_name=f"groups.{name}")
        for name, symbols in values.items()
    )


def load(path: Path) -> RunConfig:
    """Read a TOML config file. Raises ConfigError if it cannot be read, is not TOML, or has an invalid setting."""
    return parse(read_toml(path), str(path))


def validate_tournament(config: TournamentConfig, cohorts: int = 1) -> None:
    """Raise ConfigError for tournament settings out of range or inconsistent.

    cohorts: number of cohorts that share the pods.
    """
    check_settings("tournament.", config)
    check_value("tournament.", config, "champion", config.champion, between(1, config.leaderboard))
    if config.exploit_fraction + config.reinit_fraction > 1 + 1e-9:
        raise ConfigError(
            "tournament.exploit_fraction and tournament.reinit_fraction may add up to 1 at most, got "
            f"{config.exploit_fraction:g} and {config.reinit_fraction:g}; lower one of them"
        )
    if config.pods < cohorts:
        raise ConfigError(
            f"tournament.pods must be at least {cohorts}, one per cohort including [agent], got {config.pods}; "
            "increase it or remove cohorts"
        )
