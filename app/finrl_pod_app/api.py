"""The whole line in a handful of lines, for notebooks and scripts.

from finrl_pod_app import api

setup = api.prepare()                                     # the sample, its splits, features and market
agent = api.train(setup, samples=500_000, callback=lambda a, m: print(a.samples[0], float(m["reward"][0])))
api.save(agent, "agents/first", setup)
strategy = api.load("agents/first")
result = api.backtest(setup, strategy, split="validation")
print(result.metrics["sharpe"])
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_strategies.baselines import make, run_baseline
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import UserStrategy

from finrl_pod.data.splits import Span, Splits, make_splits
from finrl_pod.data.tensor import build_market, to_device
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest as run_strategy
from finrl_pod.market.rules import rules_of
from finrl_pod.protocols import Strategy
from finrl_pod.rl.training.learner import Callback, Learner
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament import snapshots
from finrl_pod.types import AgentSnapshot, BacktestResult, MarketTensor, Panel
from finrl_pod_app.services.doctor import pick_device
from finrl_pod_app.services.prices import load_panel
from finrl_pod_app.services.training import make_market, training_env
from finrl_pod_app.services.trial_log import log_look, strategy_identity


@dataclass(frozen=True, eq=False)
class Setup:
    """A config with what it names: prices, splits, and the market made of them."""

    config: RunConfig
    panel: Panel
    splits: Splits
    market: MarketTensor

    def environment(self, members: tuple[int, ...] = (0,)) -> MarketEnv:
        """The training environments: decisions inside the training split, the last reward two bars before its end."""
        return training_env(self.config, self.market, self.splits, members)


def prepare(config: RunConfig | None = None, device: str = "auto") -> Setup:
    """Load prices, split them, compute features, normalise on the training split. Raises what these raise."""
    config = config or RunConfig()
    panel = load_panel(config)
    splits = make_splits(panel.times, config.splits)
    return Setup(config, panel, splits, to_device(make_market(panel, config, splits), pick_device(device)))


def train(
    setup: Setup,
    samples: int,
    *,
    seed: int | None = None,
    callback: Callback | None = None,
    warm_start: str | Path | None = None,
    threads: int | None = None,
) -> Learner:
    """Train one agent on `samples` environment steps; see `Learner` for what it can do after.

    callback(learner, metrics) runs after every iteration; returning False stops. warm_start: an agent that `save`
    wrote. threads: CPU threads; the config's unless given.
    """
    config = setup.config
    learner = Learner(
        setup.environment(),
        config.agent,
        seed=config.seed if seed is None else seed,
        threads=config.threads if threads is None else threads,
    )
    if warm_start is not None:
        learner.restore(_read(warm_start))
    learner.learn(samples, callback=callback)
    return learner


def save(learner: Learner, path: str | Path, setup: Setup, member: int = 0) -> Path:
    """Write one agent as `path`.json and `path`.safetensors."""
    target = Path(path)
    target = target.with_name(target.name.removesuffix(".json"))
    snapshot = learner.snapshot(member, id=target.name, data_sha256=setup.panel.sha256)
    return snapshots.save(target.parent, snapshot)


def load(*paths: str | Path) -> PolicyStrategy:
    """Agents that `save` wrote, as one strategy: their target weights are averaged."""
    return PolicyStrategy([_read(path) for path in paths], name="+".join(Path(path).stem for path in paths))


def backtest(
    setup: Setup,
    strategy: Strategy | str,
    split: str = "validation",
    execution: Literal["weights", "paper"] = "weights",
) -> BacktestResult:
    """A strategy (an object with `target_weights`), or a baseline by name, over one split under the config's costs.

    Look at "test" once, at the end: a strategy that looks is logged in the register, and the verdicts that come later
    ask for more.

    execution: "paper" sends the orders that the paper-trading daemon would, rounded and sized before their fill.
    """
    spans: dict[str, Span] = {
        "train": setup.splits.train,
        "validation": setup.splits.validation,
        "test": setup.splits.test,
    }
    if split not in spans:
        raise InputError(f"split must be one of {', '.join(spans)}, got {split!r}")
    if execution not in ("weights", "paper"):
        raise InputError(f'execution must be "weights" or "paper", got {execution!r}')
    environment = setup.config.environment
    market = setup.market
    if not isinstance(strategy, str):
        if not all(hasattr(strategy, name) for name in ("name", "feature_names")):
            given = strategy
            strategy = UserStrategy(lambda: given, type(given).__name__)
        if isinstance(strategy, PolicyStrategy):
            strategy.check_universe(setup.panel.symbols)
        if not set(strategy.feature_names) <= set(market.feature_names):  # turbulence, or features of its own
            market = build_market(
                setup.panel, strategy.feature_names, (0, len(setup.panel.times) - 1), environment.fill
            )
        log_look(setup.panel, spans[split], strategy_identity(strategy), f"backtest of {strategy.name}")
    if execution == "paper":
        from finrl_pod_app.paper.execution_rules import of_environment

        chosen = make(strategy) if isinstance(strategy, str) else strategy
        paper, span = of_environment(environment, setup.panel), spans[split]
        return paper.backtest(chosen, setup.panel, market, span.first, span.last)[0]
    terms = (spans[split].first, spans[split].last, rules_of(environment), environment.cash)
    if isinstance(strategy, str):
        return run_baseline(strategy, setup.panel, market, *terms)
    return run_strategy(strategy, setup.panel, market, *terms)


def _read(path: str | Path) -> AgentSnapshot:
    target = Path(path)
    return snapshots.load(target.parent / f"{target.name.removesuffix('.json')}.json")
