"""The settings of a run: one TOML file, frozen records, unknown keys refused.

Every field has a default, so an empty file is the laptop preset. Reading a file validates it (pydantic, imported only
then); the records themselves are plain dataclasses that the core uses without it.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finrl_pod.errors import ConfigError
from finrl_pod.settings.algorithm_configs import AgentConfig, PPOConfig
from finrl_pod.settings.algorithm_registry import ALGORITHMS

__all__ = [
    "MOST_SEED",
    "AgentConfig",
    "DataConfig",
    "EnvironmentConfig",
    "FeatureConfig",
    "PPOConfig",
    "RunConfig",
    "SplitConfig",
    "TournamentConfig",
    "load",
    "parse",
]


MOST_SEED = 2**63 - 1  # what a random generator and a file of tensors hold
MOST_THREADS = 1024


@dataclass(frozen=True)
class DataConfig:
    """Which panel of the store, and which of its symbols (empty: all)."""

    name: str = "sample"
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True)
class SplitConfig:
    """First and last date of each split; `embargo` bars are dropped from the end of train and of validation."""

    train: tuple[str, str] = ("1990-01-02", "2015-12-31")
    validation: tuple[str, str] = ("2016-01-01", "2018-12-31")
    test: tuple[str, str] = ("2019-01-01", "2022-12-31")
    embargo: int = 5


@dataclass(frozen=True)
class FeatureConfig:
    """Names of registered features, in order."""

    names: tuple[str, ...] = (
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
    )


@dataclass(frozen=True)
class EnvironmentConfig:
    """The market's rules.

    kind: "portfolio" takes target weights, "stock_trading" shares to trade scaled by `hmax`, "discrete" one choice out
    of 2 N + 1: hold on, or buy or sell one of N assets for `trade_fraction` of the equity.
    fill: "next" fills at the next open (the next close where there are no opens); "same_close" at the close that the
    decision saw, for comparison only. window: bars an episode. group: environments that share a window.
    turbulence_limit: sell everything while turbulence is above it; 0 turns it off.
    half_spread_bps .. cash_rates: further costs, see `finrl_pod.market.costs.Frictions`; their defaults charge nothing.
    adjusted_shares: allow whole shares and costs a share on adjusted prices, whose past counts of shares are not those
    that were traded.
    """

    kind: Literal["portfolio", "stock_trading", "discrete"] = "portfolio"
    cost_bps: float = 10.0
    cash: float = 1_000_000.0
    window: int = 252
    reward: Literal["log_return", "change", "differential_sharpe"] = "log_return"
    fill: Literal["next", "same_close"] = "next"
    buy_allocation: Literal["proportional", "sequential"] = "proportional"
    whole_shares: bool = False
    short: bool = False
    leverage: float = 1.0
    hmax: float = 100.0
    trade_fraction: float = 0.25
    turbulence_limit: float = 0.0
    half_spread_bps: float = 0.0
    per_share: float = 0.0
    per_share_minimum: float = 0.0
    impact: float = 0.0
    participation: float = 0.0
    borrow_fee: float = 0.0
    delisting_return: float = 0.0
    delay: int = 1
    cash_rates: tuple[tuple[str, float], ...] = ()
    adjusted_shares: bool = False
    envs: int = 256
    group: int = 16


@dataclass(frozen=True)
class TournamentConfig:
    """Population, budget and selection.

    pods: agents trained side by side, each on generations x samples_per_generation environment steps.
    exploit_fraction: share of pods that start a generation from the leaderboard. reinit_fraction: share that starts
    from new weights; the rest continue. perturb_factor: an inherited hyperparameter is multiplied or divided by it.
    champion: members of the ensemble. ensemble: the mean of their target weights, the mean weighted by validation
    Sharpe ratio, or a vote: the median weight of each asset, and the majority choice for discrete actions.
    seconds: wall-clock limit, 0 is off.
    """

    pods: int = 8
    generations: int = 6
    samples_per_generation: int = 100_000
    leaderboard: int = 16
    exploit_fraction: float = 0.5
    reinit_fraction: float = 0.125
    perturb_factor: float = 1.25
    resample_probability: float = 0.1
    champion: int = 4
    ensemble: Literal["mean", "sharpe", "vote"] = "mean"
    seconds: float = 0.0


@dataclass(frozen=True)
class GateConfig:
    """Thresholds that a champion must reach to be promoted; all rules must pass.

    min_dsr: lowest deflated Sharpe ratio (DSR) on validation, counting all trials on the data. max_pbo: highest
    probability of backtest overfitting (PBO) of the run's own trials on validation, cut into `pbo_blocks`; a higher one
    passes if the selected trial falls behind equal weight in at most `max_pbo_loss_probability` of the splits.
    min_psr: probability that it beats equal weight on test. superiority_confidence: confidence that it beats the best
    baseline of validation on test. The error of both, 1 - confidence, is shared by all looks at the test period.
    min_excess_bps: basis points a bar that the lower end of the interval of excess growth on test must exceed.
    max_drawdown: largest fall from a peak on test. break_even_cost_multiple: lowest break-even cost against equal
    weight on test, as a multiple of environment.cost_bps. audit: the champion's audit must find no fault.
    """

    min_dsr: float = 0.75
    max_pbo: float = 0.5
    max_pbo_loss_probability: float = 0.05
    pbo_blocks: int = 16
    min_psr: float = 0.95
    superiority_confidence: float = 0.8
    min_excess_bps: float = 0.0
    max_drawdown: float = 0.5
    break_even_cost_multiple: float = 1.5
    audit: bool = True


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on.

    cohorts: further agents of other algorithms or settings. The tournament's pods are dealt out in turn to `agent` and
    to each of them; all compete on one leaderboard.
    """

    seed: int = 0
    threads: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    splits: SplitConfig = field(default_factory=SplitConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    agent: AgentConfig = field(default_factory=PPOConfig)
    tournament: TournamentConfig = field(default_factory=TournamentConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    cohorts: tuple[AgentConfig, ...] = ()

    def agent_of(self, slot: int) -> AgentConfig:
        """What the pod in this slot of a tournament runs."""
        agents = (self.agent, *self.cohorts)
        return agents[slot % len(agents)]

    @property
    def sha256(self) -> str:
        """Hash of every setting."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()


def parse(values: dict[str, Any], where: str = "config") -> RunConfig:
    """Check plain values (as TOML or JSON gives them) and build the config. Raises ConfigError on the first fault."""
    chosen = dict(values)
    if "agent" in chosen:
        chosen["agent"] = _parse_agent(chosen["agent"], "agent", where)
    if isinstance(chosen.get("cohorts"), list | tuple):
        chosen["cohorts"] = tuple(
            _parse_agent(agent, f"cohorts.{i}", where) for i, agent in enumerate(chosen["cohorts"])
        )
    config: RunConfig = _checked(RunConfig, chosen, (), where)
    if not config.features.names:
        raise ConfigError(
            f"{where}: features.names must name one feature at least, got none; leave it out for the usual ones"
        )
    for name in ("seed", "threads"):
        if getattr(config, name) < 0:
            raise ConfigError(f"{where}: {name} must be 0 or more, got {getattr(config, name)}")
    for name, most in (("seed", MOST_SEED), ("threads", MOST_THREADS)):
        if getattr(config, name) > most:
            raise ConfigError(f"{where}: {name} must be at most {most}, got {getattr(config, name)}")
    return config


def _parse_agent(values: Any, place: str, where: str) -> AgentConfig:
    """The record of the algorithm that the values name: each algorithm has its own settings."""
    if isinstance(values, AgentConfig):
        return values
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: {place} must be a table of settings, got {values!r}")
    name = values.get("algorithm", RunConfig().agent.algorithm)
    if not isinstance(name, str) or name not in ALGORITHMS:
        close = difflib.get_close_matches(str(name), ALGORITHMS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(ALGORITHMS)}"
        raise ConfigError(f"{where}: {place}.algorithm: there is no algorithm {name!r}; {hint}")
    agent: AgentConfig = _checked(ALGORITHMS[name].record, {**values, "algorithm": name}, (place,), where)
    return agent


def _checked(record: type[Any], values: dict[str, Any], place: tuple[str, ...], where: str) -> Any:
    """The record made of the values. Raises ConfigError on the first fault."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

    adapter = TypeAdapter(with_config(ConfigDict(extra="forbid", allow_inf_nan=False))(record))
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, (*place, *first["loc"])))
        if first["type"] == "unexpected_keyword_argument":
            raise ConfigError(f"{where}: unknown key {key}; {_nearest(record, first['loc'])}") from None
        raise ConfigError(f"{where}: {key}: {first['msg']}, got {first['input']!r}") from None


def _nearest(record: type[Any], place: tuple[int | str, ...]) -> str:
    """What the last part of a key's place may have meant, among the fields of the record that it stands in."""
    nested: Any = record()
    for part in place[:-1]:
        nested = getattr(nested, str(part))
    known, name = [field.name for field in dataclasses.fields(nested)], str(place[-1])
    if isinstance(nested, AgentConfig):
        others = [f.name for f in ALGORITHMS.values() if name in {x.name for x in dataclasses.fields(f.record)}]
        if others:
            return f"it is a setting of {', '.join(others)}, and {nested.algorithm} has no such setting"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def load(path: Path) -> RunConfig:
    """Read a TOML config file. Raises ConfigError when it is missing, not TOML, or breaks a rule."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of Unicode, TOML, and numbers and nesting beyond all sense
        raise ConfigError(f"config {path} is not TOML: {error}") from None
    return parse(values, str(path))
