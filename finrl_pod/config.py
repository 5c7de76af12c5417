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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finrl_pod.errors import ConfigError


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

    kind: "portfolio" takes target weights, "stock_trading" shares to trade scaled by `hmax`.
    fill: "next" fills at the next open (the next close where there are no opens); "same_close" at the close that the
    decision saw, for comparison only. window: bars an episode. group: environments that share a window.
    turbulence_limit: sell everything while turbulence is above it; 0 turns it off.
    half_spread_bps .. cash_rates: further costs, see `finrl_pod.market.costs.Frictions`; their defaults charge nothing.
    adjusted_shares: allow whole shares and costs a share on adjusted prices, whose past counts of shares are not those
    that were traded.
    """

    kind: Literal["portfolio", "stock_trading"] = "portfolio"
    cost_bps: float = 10.0
    cash: float = 1_000_000.0
    window: int = 252
    reward: Literal["log_return", "change", "differential_sharpe"] = "log_return"
    fill: Literal["next", "same_close"] = "next"
    order: Literal["proportional", "sequential"] = "proportional"
    whole_shares: bool = False
    short: bool = False
    leverage: float = 1.0
    hmax: float = 100.0
    turbulence_limit: float = 0.0
    half_spread_bps: float = 0.0
    per_share: float = 0.0
    per_share_minimum: float = 0.0
    impact: float = 0.0
    participation: float = 0.0
    borrow_fee: float = 0.0
    exit_return: float = 0.0
    delay: int = 1
    cash_rates: tuple[tuple[str, float], ...] = ()
    adjusted_shares: bool = False
    envs: int = 256
    group: int = 16


@dataclass(frozen=True)
class AgentConfig:
    """One PPO agent. What is shared by a cohort stands first, then what each member has of its own.

    group_baseline: take from each advantage the mean over the accounts that live through the same days (as many as
    environment.group): the market's noise, which no action caused. target_kl: a member that moved further than this
    from the policy that collected the data sits out the rest of the iteration.
    """

    algorithm: Literal["ppo"] = "ppo"
    policy: Literal["equivariant", "mlp"] = "equivariant"
    hidden: tuple[int, ...] = (32, 32)
    horizon: int = 32
    epochs: int = 2
    minibatches: int = 8
    group_baseline: bool = True
    learning_rate_schedule: Literal["constant", "linear"] = "linear"
    learning_rate: float = 3e-3
    discount: float = 0.95
    gae_lambda: float = 0.9
    clip: float = 0.2
    entropy: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float = 0.05


@dataclass(frozen=True)
class TournamentConfig:
    """Population, budget and selection.

    pods: members trained side by side. generations x samples: budget, `samples` a pod and generation.
    inherit: share of slots that start a generation from the leaderboard; fresh: share that starts anew; the rest
    go on as they are. perturb: hyperparameters are multiplied or divided by it. champion: members of the ensemble.
    seconds: wall-clock limit, 0 is off.
    """

    pods: int = 8
    generations: int = 6
    samples: int = 100_000
    leaderboard: int = 16
    inherit: float = 0.5
    fresh: float = 0.125
    perturb: float = 1.25
    resample: float = 0.1
    champion: int = 4
    ensemble: Literal["mean", "sharpe"] = "mean"
    seconds: float = 0.0


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on."""

    seed: int = 0
    threads: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    splits: SplitConfig = field(default_factory=SplitConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    tournament: TournamentConfig = field(default_factory=TournamentConfig)

    @property
    def sha256(self) -> str:
        """Hash of every setting."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()


def check_ranges(section: str, config: object, ranges: Mapping[str, bool]) -> None:
    """Raises ConfigError for the first setting of a section that is not good. ranges: name -> whether it is."""
    for name, good in ranges.items():
        if not good:
            raise ConfigError(f"{section}.{name} is out of its range, got {getattr(config, name)!r}; see its default")


def parse(values: dict[str, Any], where: str = "config") -> RunConfig:
    """Check plain values (as TOML or JSON gives them) and build the config. Raises ConfigError on the first fault."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

    adapter = TypeAdapter(with_config(ConfigDict(extra="forbid", allow_inf_nan=False))(RunConfig))
    try:
        config = adapter.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "unexpected_keyword_argument":
            raise ConfigError(f"{where}: unknown key {key}; {_nearest(first['loc'])}") from None
        raise ConfigError(f"{where}: {key}: {first['msg']}, got {first['input']!r}") from None
    for name in ("seed", "threads"):
        if getattr(config, name) < 0:
            raise ConfigError(f"{where}: {name} must be 0 or more, got {getattr(config, name)}")
    return config


def _nearest(place: tuple[int | str, ...]) -> str:
    """What the last part of a key's place may have meant, among the fields of the record that it stands in."""
    record: Any = RunConfig()
    for part in place[:-1]:
        record = getattr(record, str(part))
    known = [field.name for field in dataclasses.fields(record)]
    close = difflib.get_close_matches(str(place[-1]), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def load(path: Path) -> RunConfig:
    """Read a TOML config file. Raises ConfigError when it is missing, not TOML, or breaks a rule."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} is not TOML: {error}") from None
    return parse(values, str(path))
