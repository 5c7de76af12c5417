"""Markets to train on, saved agents, and checks of the arguments of the Python API."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from finrl_pod_envs.gym import GymMarketEnv, GymVectorEnv
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_strategies.policy import Model, ModelStrategy, PolicyStrategy

from finrl_pod.arguments import check_arguments
from finrl_pod.data.sources.feature_tables import with_tables
from finrl_pod.data.splits import REWARD_LAG, Span, Splits, make_splits
from finrl_pod.data.tensor import to_device
from finrl_pod.display import table_html
from finrl_pod.errors import InputError, RunError, shown
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import RunConfig, parse
from finrl_pod.tournament import snapshots
from finrl_pod.types import AgentSnapshot, MarketTensor, Panel
from finrl_pod.user_files import pinned
from finrl_pod_app.prices.market_setup import check_settings, make_market, training_env, with_effective_settings
from finrl_pod_app.prices.stored_prices import check_prices, load_panel
from finrl_pod_app.report.columns import display_name
from finrl_pod_app.setup.doctor import pick_device


@dataclass(frozen=True, eq=False)
class Setup:
    """A config with its prices, splits and market."""

    config: RunConfig
    panel: Panel
    splits: Splits
    market: MarketTensor

    def __repr__(self) -> str:
        spans = ", ".join(f"{name} {len(self.span(name)):,}" for name in ("train", "validation", "test"))
        features = len(self.market.feature_names)
        agent = self.config.agent.algorithm
        return f"Setup({self.panel!r}; {features} features; bars: {spans}; agent {agent!r}; rules: {self._rules()})"

    def _rules(self) -> str:
        """The rules that decide most of a result."""
        environment = self.config.environment
        mandate = self.config.mandate
        mandate_text = "no mandate"
        if mandate.base != "none":
            mandate_text = (
                f"{display_name(mandate.base)} with tilt {mandate.tilt:g} and trade speed {mandate.trade_speed:g}"
            )
        fills = "the same close" if environment.fill == "same_close" else f"delay {environment.delay}"
        return f"{environment.cost_bps:g} bp a trade, cash {environment.cash:,.0f}, {fills}, {mandate_text}"

    def _repr_html_(self) -> str:
        spans = [(name, *dates, f"{len(self.span(name)):,}") for name, dates in self.splits.dates().items()]
        features = self.market.feature_names
        agent = self.config.agent.algorithm
        note = f"{len(features)} features: {', '.join(features)}. Agent: {agent}. Rules: {self._rules()}."
        head = ("split", "first bar", "last bar", "bars")
        return f"<div>{self.panel._repr_html_()}{table_html('Splits', spans, head, note)}</div>"

    @check_arguments
    def environment(self, members: tuple[int, ...] = (0,)) -> MarketEnv:
        """Return environments on the training split for the given population members."""
        return training_env(self.config, self.market, self.splits, members)

    @check_arguments
    def span(self, split: str) -> Span:
        """First and last bar of "train", "validation" or "test". Raises InputError for another name."""
        spans = {"train": self.splits.train, "validation": self.splits.validation, "test": self.splits.test}
        if split not in spans:
            raise InputError(f"split must be one of {', '.join(spans)}, got {shown(split)}")
        return spans[split]

    @check_arguments
    def gym(self, split: str = "train") -> GymMarketEnv:
        """One account on the bars of a split as a Gymnasium environment, under the rules and mandate of the config.

        An episode is a window of `environment.window` bars at a random place of the split, and its last decision is
        two bars before the end of the split at the latest, so that its reward lies inside. An observation has cash and
        holdings as shares of equity, then the normalised features asset by asset; an action in [-1, 1] for each asset
        tilts its base weight under a mandate. To test a trained model on a whole split use `strategy`. Raises
        InputError for an unknown split.
        """
        span = self.span(split)
        config = self.config
        last = span.last - REWARD_LAG
        return GymMarketEnv(self.market, config.environment, first=span.first, last=last, mandate=config.mandate)

    @check_arguments
    def strategy(self, model: Model, name: str = "") -> ModelStrategy:
        """A model that was trained on `gym` or `gym_vector`, such as one of Stable-Baselines3, as a strategy.

        model: with `predict(observation, deterministic=True)` that returns an action and a state. `fp.backtest(model,
        market)` does the same. Raises InputError for a model without it.
        """
        if not callable(getattr(model, "predict", None)):
            raise InputError(
                f"a model needs a method predict(observation, deterministic=True), {type(model).__name__} has none"
            )
        env = self.environment()
        config = self.config
        spec = PolicySpec("mlp", env.assets, len(self.market.feature_names), env.action_size, (), env.action_kind)
        normaliser = self.market.normaliser
        panel = self.panel.sha256
        return ModelStrategy(model, normaliser, config.environment, config.mandate, spec, panel, name)

    @check_arguments
    def gym_vector(self, split: str = "train", envs: int | None = None) -> GymVectorEnv:
        """`envs` accounts on the bars of a split as a Gymnasium vector environment; by default as many as in the
        config.

        Raises InputError for an unknown split.
        """
        span = self.span(split)
        config = self.config
        last = span.last - REWARD_LAG
        return GymVectorEnv(
            self.market, config.environment, first=span.first, last=last, envs=envs, mandate=config.mandate
        )


@check_arguments
def prepare(config: RunConfig | None = None, device: str = "auto", *, panel: Panel | None = None) -> Setup:
    """Load prices, split them, compute features and normalise them on the training split.

    config: default settings if None. device: "auto", "cpu" or "cuda". panel: prices; by default the
    prices of the config. Raises DataError, FeatureError or ConfigError.
    """
    config = RunConfig() if config is None else parse(dataclasses.asdict(config), "the config")  # checks types
    config = with_effective_settings(pinned(config))[0]
    panel = load_panel(config) if panel is None else with_tables(panel, config.features.tables)
    check_prices(config.environment, panel)
    splits = make_splits(panel.times, config.splits)
    market = make_market(panel, config, splits)
    check_settings(config, market, splits)
    torch_device = pick_device(device)
    return Setup(config, panel, splits, to_device(market, torch_device))


@check_arguments
def save(learner: Learner, path: str | Path, setup: Setup, member: int = 0) -> Path:
    """Write one member as `path`.json and `path`.safetensors and return the path of the JSON file."""
    target = Path(path)
    if not target.name:
        raise InputError(f"path must name the files of an agent, got {shown(str(path))}")
    target = target.with_name(target.name.removesuffix(".json"))
    member = whole_number("member", member, 0, learner.env.members - 1)
    snapshot = learner.snapshot(member, id=target.name, data_sha256=setup.panel.sha256)
    return snapshots.save(target.parent, snapshot)


@check_arguments
def load(*paths: str | Path) -> PolicyStrategy:
    """Load agents written by `save` as one strategy that averages their target weights."""
    return PolicyStrategy([read_snapshot(path) for path in paths], name="+".join(Path(path).stem for path in paths))


def is_saved(path: str | Path) -> bool:
    """Whether `load` finds a saved agent there."""
    file = _file_of(Path(path))
    return file.is_file() and file.with_suffix(".safetensors").is_file()


def _file_of(path: Path) -> Path:
    return path.parent / f"{path.name.removesuffix('.json').removesuffix('.safetensors')}.json"


def read_snapshot(path: str | Path) -> AgentSnapshot:
    """The agent that `save` wrote. Raises RunError if there is none."""
    file = _file_of(Path(path))
    if not file.is_file():
        raise RunError(f"there is no saved agent {str(path)!r}: give the path that fp.save_agent or agent.save wrote")
    return snapshots.load(file)


def whole_number(name: str, value: int, low: int, high: int | None = None) -> int:
    """The argument. Raises InputError unless it is from `low` to `high`."""
    if value < low or (high is not None and value > high):
        range_text = f"of at least {low:,}" if high is None else f"from {low:,} to {high:,}"
        raise InputError(f"{name} must be a whole number {range_text}, got {shown(value)}")
    return value
