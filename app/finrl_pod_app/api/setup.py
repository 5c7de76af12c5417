"""Python API: prepare a market, train, save, load and backtest in a few lines.

```python
from finrl_pod_app.api import setup as api

setup = api.prepare()                                     # built-in sample: prices, splits, features, market
learner = api.train(
    setup, samples=500_000, callback=lambda learner, metrics: print(learner.samples[0], float(metrics["reward"][0]))
)
api.save(learner, "agents/first", setup)
strategy = api.load("agents/first")
result = api.backtest(setup, strategy, split="validation")
print(result.metrics["sharpe"])
```
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from finrl_pod_envs.gym import GymMarketEnv, GymVectorEnv
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_strategies.baselines import make_baseline, run_baseline
from finrl_pod_strategies.policy import Model, ModelStrategy, PolicyStrategy
from finrl_pod_strategies.user_strategy import UserStrategy

from finrl_pod.data.splits import REWARD_LAG, Span, Splits, make_splits
from finrl_pod.data.tensor import build_market, to_device
from finrl_pod.display import table_html
from finrl_pod.errors import InputError, RunError
from finrl_pod.evaluate.backtest import backtest as run_strategy
from finrl_pod.market.rules import rules_of
from finrl_pod.native.threads import restored_threads
from finrl_pod.promotion.trial_log import log_look
from finrl_pod.protocols import Strategy
from finrl_pod.rl.algorithms.validation import is_solved
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.training.learner import Callback, Learner
from finrl_pod.settings.algorithm_configs import ClosedFormConfig
from finrl_pod.settings.run import MAX_SEED, MAX_THREADS, RunConfig, parse
from finrl_pod.tournament import snapshots
from finrl_pod.types import AgentSnapshot, BacktestResult, MarketTensor, Panel
from finrl_pod.user_files import pinned
from finrl_pod_app.api.arguments import as_path, check_callback, whole_number
from finrl_pod_app.evaluation.champions import strategy_identity
from finrl_pod_app.prices.market_setup import (
    check_settings,
    make_market,
    solved_start,
    training_env,
    with_effective_settings,
)
from finrl_pod_app.prices.panels import check_prices, load_panel
from finrl_pod_app.report.columns import display_name
from finrl_pod_app.setup.doctor import pick_device

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


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
        environment, mandate = self.config.environment, self.config.mandate
        held = "no mandate"
        if mandate.base != "none":
            held = f"{display_name(mandate.base)} with tilt {mandate.tilt:g} and trade speed {mandate.trade_speed:g}"
        delay = environment.delay
        fills = (
            f"fills {delay} bar{'s' * (delay > 1)} after the decision"
            if environment.fill == "next"
            else "fills at the same close"
        )
        return f"{environment.cost_bps:g} bp a trade, cash {environment.cash:,.0f}, {fills}, {held}"

    def _repr_html_(self) -> str:
        spans = [(name, *dates, f"{len(self.span(name)):,}") for name, dates in self.splits.dates().items()]
        features, agent = self.market.feature_names, self.config.agent.algorithm
        note = f"{len(features)} features: {', '.join(features)}. Agent: {agent}. Rules: {self._rules()}."
        head = ("split", "first bar", "last bar", "bars")
        return f"<div>{self.panel._repr_html_()}{table_html('Splits', spans, head, note)}</div>"

    def plot(self) -> Figure:
        """The panel's closes as in `Panel.plot`, with the splits shaded; a Plotly figure."""
        from finrl_pod_app.api.figures import splits_figure

        return splits_figure(self.panel.plot(), self.splits.dates())

    def environment(self, members: tuple[int, ...] = (0,)) -> MarketEnv:
        """Return environments on the training split for the given population members."""
        return training_env(self.config, self.market, self.splits, members)

    def span(self, split: str) -> Span:
        """First and last bar of "train", "validation" or "test". Raises InputError for another name."""
        spans = {"train": self.splits.train, "validation": self.splits.validation, "test": self.splits.test}
        if split not in spans:
            raise InputError(f"split must be one of {', '.join(spans)}, got {split!r}")
        return spans[split]

    def gym(self, split: str = "train") -> GymMarketEnv:
        """One account on the bars of a split as a Gymnasium environment, under the config's rules and mandate.

        An episode is a window of `environment.window` bars at a random place of the split, and its last decision is
        two bars before the end of the split at the latest, so that its reward lies inside. An observation has cash and
        holdings as shares of equity, then the normalised features asset by asset; an action in [-1, 1] for each asset
        tilts its base weight under a mandate. To test a trained model on a whole split use `strategy`. Raises
        InputError for an unknown split.
        """
        span, config = self.span(split), self.config
        last = span.last - REWARD_LAG
        return GymMarketEnv(self.market, config.environment, first=span.first, last=last, mandate=config.mandate)

    def strategy(self, model: Model, name: str = "") -> ModelStrategy:
        """A model that was trained on `gym` or `gym_vector`, such as one of Stable-Baselines3, as a strategy.

        model: with `predict(observation, deterministic=True)`, which returns an action and a state. `fp.backtest(model,
        market)` does the same. Raises InputError for a model without it.
        """
        if not callable(getattr(model, "predict", None)):
            raise InputError(
                f"a model needs a method predict(observation, deterministic=True), {type(model).__name__} has none"
            )
        env, config = self.environment(), self.config
        spec = PolicySpec("mlp", env.assets, len(self.market.feature_names), env.action_size, (), env.action_kind)
        normaliser, panel = self.market.normaliser, self.panel.sha256
        return ModelStrategy(model, normaliser, config.environment, config.mandate, spec, panel, name)

    def gym_vector(self, split: str = "train", envs: int | None = None) -> GymVectorEnv:
        """`envs` accounts on the bars of a split as a Gymnasium vector environment; by default as many as the config's.

        Raises InputError for an unknown split.
        """
        span, config = self.span(split), self.config
        last = span.last - REWARD_LAG
        return GymVectorEnv(
            self.market, config.environment, first=span.first, last=last, envs=envs, mandate=config.mandate
        )


def prepare(config: RunConfig | None = None, device: str = "auto", *, panel: Panel | None = None) -> Setup:
    """Load prices, split them, compute features and normalise them on the training split.

    config: default settings if None. device: "auto", "cpu" or "cuda". panel: prices, by default the
    config's. Raises DataError, FeatureError or ConfigError.
    """
    config = RunConfig() if config is None else parse(dataclasses.asdict(config), "the config")  # checks types
    config = with_effective_settings(pinned(config))[0]
    panel = load_panel(config) if panel is None else panel
    check_prices(config.environment, panel)
    splits = make_splits(panel.times, config.splits)
    market = make_market(panel, config, splits)
    check_settings(config, market, splits)
    chosen = pick_device(device)
    return Setup(config, panel, splits, to_device(market, chosen))


def train(
    setup: Setup,
    samples: int,
    *,
    seed: int | None = None,
    callback: Callback | None = None,
    warm_start: str | Path | None = None,
    threads: int | None = None,
) -> Learner:
    """Train one agent for `samples` environment steps and return its `Learner`.

    Whole iterations are trained, at least one (8,192 samples with default settings); a closed form is solved instead.
    seed: the config's by default.
    threads: CPU threads of this training, by default the config's, or one for a linear policy. callback(learner,
    metrics) is called after every iteration; returning False stops the training. warm_start: path of an agent written
    by `save`. Raises InputError for invalid arguments.
    """
    config = setup.config
    samples = whole_number("samples", samples, 1)
    seed = None if seed is None else whole_number("seed", seed, 0, MAX_SEED)
    threads = None if threads is None else whole_number("threads", threads, 0, MAX_THREADS)
    check_callback(callback)
    if isinstance(config.agent, ClosedFormConfig):
        samples = 1  # it is solved, whatever their number
    if threads is None:
        # The operations of one linear policy are so small that further threads only wait for each other.
        threads = config.threads or (1 if getattr(config.agent, "policy", None) == "linear" else 0)
    start = solved_start(config, setup.market, setup.splits) if is_solved(config.agent) else None
    with restored_threads():
        learner = Learner(
            setup.environment(),
            config.agent,
            seed=config.seed if seed is None else seed,
            threads=threads,
            start=start,
        )
        if warm_start is not None:
            learner.restore(_read(warm_start))
        learner.learn(samples, callback=callback)
    return learner


def save(learner: Learner, path: str | Path, setup: Setup, member: int = 0) -> Path:
    """Write one member as `path`.json and `path`.safetensors and return the path of the JSON file."""
    target = as_path(path, "an agent is saved under a path")
    target = target.with_name(target.name.removesuffix(".json"))
    snapshot = learner.snapshot(member, id=target.name, data_sha256=setup.panel.sha256)
    return snapshots.save(target.parent, snapshot)


def load(*paths: str | Path) -> PolicyStrategy:
    """Load agents written by `save` as one strategy that averages their target weights."""
    return PolicyStrategy([_read(path) for path in paths], name="+".join(Path(path).stem for path in paths))


def backtest(
    setup: Setup,
    strategy: Strategy | str,
    split: str = "validation",
    execution: Literal["weights", "paper"] = "weights",
) -> BacktestResult:
    """Backtest a strategy (an object with `target_weights`, or the name of a baseline) on one split.

    split: "train", "validation" or "test". Use "test" once, at the end: every look at it is recorded in the trial
    registry and makes later promotions harder. execution: "weights" trades target weights directly; "paper" sizes and
    rounds orders as the paper-trading daemon does. Raises InputError for an unknown split or execution.
    """
    span = setup.span(split)
    if execution not in ("weights", "paper"):
        raise InputError(f'execution must be "weights" or "paper", got {execution!r}')
    environment = setup.config.environment
    market = setup.market
    if not isinstance(strategy, str):
        if not all(hasattr(strategy, name) for name in ("name", "feature_names")):
            user_object = strategy
            strategy = UserStrategy(lambda: user_object, type(user_object).__name__)
        if isinstance(strategy, PolicyStrategy):
            strategy.check_universe(setup.panel.symbols)
        if not set(strategy.feature_names) <= set(market.feature_names):  # turbulence, or features that the setup lacks
            market = build_market(
                setup.panel, strategy.feature_names, (0, len(setup.panel.times) - 1), environment.fill
            )
    identity = None if isinstance(strategy, str) or split != "test" else strategy_identity(strategy)
    period = (span.first, span.last)
    account = (rules_of(environment), environment.cash)
    if execution == "paper":
        from finrl_pod_app.evaluation.execution_rules import rules_of_environment

        chosen = make_baseline(strategy) if isinstance(strategy, str) else strategy
        paper = rules_of_environment(environment, setup.panel, chosen)
        result = paper.backtest(chosen, setup.panel, market, *period)[0]
    elif isinstance(strategy, str):
        result = run_baseline(strategy, setup.panel, market, *period, *account)
    else:
        result = run_strategy(strategy, setup.panel, market, *period, *account)
    if identity is not None:  # what failed has shown nothing
        log_look(setup.panel, span, identity, f"backtest of {result.name}")
    return result


def is_saved(path: str | Path) -> bool:
    """Whether `load` finds a saved agent there."""
    file = _file_of(Path(path))
    return file.is_file() and file.with_suffix(".safetensors").is_file()


def _file_of(path: Path) -> Path:
    return path.parent / f"{path.name.removesuffix('.json').removesuffix('.safetensors')}.json"


def _read(path: str | Path) -> AgentSnapshot:
    file = _file_of(as_path(path, "a saved agent must be the path that fp.save_agent or agent.save wrote"))
    if not file.is_file():
        raise RunError(f"there is no saved agent {str(path)!r}: give the path that fp.save_agent or agent.save wrote")
    return snapshots.load(file)
