"""Checks of custom extensions: each is run on a small random market; broken rules are named in words."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from finrl_pod_envs.custom.contract import MAX_STEPS, MEMBERS, Fault, check_env
from finrl_pod_envs.custom.loader import load_env, load_joint_env
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv, ParallelMultiAgentEnv
from finrl_pod_envs.gymnasium_pool.lanes import is_gymnasium
from finrl_pod_envs.gymnasium_pool.parallel_lanes import is_parallel
from finrl_pod_envs.trading_envs import make_env
from finrl_pod_strategies.user_strategy import UserStrategy, restartable_strategy

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.features import Feature, compute_one, lookup, own_feature
from finrl_pod.data.panel import make_panel
from finrl_pod.data.sources.factory import open_source
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import FeatureError, FinrlPodError, InputError
from finrl_pod.evaluate.audit.lookahead import check_lookahead
from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.costs import BarLiquidity
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.market.rewards import Interval, StepReward
from finrl_pod.market.rules import custom_cost
from finrl_pod.paper.brokers.factory import missing_members
from finrl_pod.paper.domain.port import Broker
from finrl_pod.protocols import MultiAgentVecEnv, VecEnv
from finrl_pod.rl.multi_agent.views import view_agents
from finrl_pod.rl.networks.policies import Policy, PolicySpec, make_policy, policy_maker
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import A2CConfig, AgentConfig
from finrl_pod.settings.algorithm_registry import algorithm_info
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import Benchmark, MarketTensor, Panel, Tensor
from finrl_pod.user_files import (
    error_text,
    forget_modules,
    is_file_reference,
    own_failure,
    pin,
    stdout_to_stderr,
    unpinned,
)
from finrl_pod_app.setup.extensions import find_extension, kind_of

BARS, ASSETS, SEED = 420, 6, 7
PROBES = 40  # random bars after which all later ones are changed
GAP = slice(200, 208)  # bars on which one ticker does not trade
CASH = 1e6
RETURN = "return_1"  # a feature of the market whose features are replaced
# Batch dimensions of the inputs of a policy: rule, one of it, several, letter.
ROWS = (
    ("members", "a member", "members", "P"),
    ("bars", "a bar", "bars", "K"),
    ("accounts", "an account", "accounts", "A"),
)
ASKED = ("AAPL", "MSFT")  # of sources
_log = logging.getLogger(__name__)


def random_panel(bars: int = BARS, assets: int = ASSETS) -> Panel:
    """A panel of random walks with all columns, an index and sectors.

    The last ticker starts late, the second one ends early.
    """
    rng = np.random.default_rng(SEED)
    close = 50 * np.exp(np.cumsum(rng.normal(3e-4, 0.015, (bars, assets)), axis=0))
    spread = np.abs(rng.normal(0, 0.005, (bars, assets)))
    opens = close * np.exp(rng.normal(0, 0.003, (bars, assets)))
    columns = {
        "close": close,
        "open": opens,
        "high": np.maximum(close, opens) * (1 + spread),
        "low": np.minimum(close, opens) * (1 - spread),
        "volume": np.round(rng.uniform(1e5, 1e6, (bars, assets))),
    }
    index = 1000 * np.exp(np.cumsum(rng.normal(3e-4, 0.01, bars)))
    for values in columns.values():
        values[:40, -1] = np.nan
        values[-30:, 1] = np.nan
    days = np.datetime64("2015-01-01") + np.arange(bars).astype("timedelta64[D]")
    return make_panel(
        days.astype("datetime64[ns]"),
        [f"T{i}" for i in range(assets)],
        columns,
        name="random",
        benchmark=Benchmark("index", index, price_only=False),
        sectors=["odd" if i % 2 else "even" for i in range(assets)],
    )


def feature_faults(make: Callable[[], Feature], restart: Callable[[], None] | None = None) -> list[Fault]:
    """Faults of a feature.

    make: the feature, from code that was imported again if `restart` was called. restart: forgets the imported code, so
    that numbers that it kept from its first call are noticed; None if it has no file.
    """
    panel = random_panel()
    feature = make()
    try:
        values = compute_one(panel, feature)  # [T, N]; raises FeatureError for other shapes
    except FeatureError as error:
        if "read-only" not in str(error):
            raise
        return [Fault("side effect", "it changes the panel; work on copies of its arrays")]
    if not np.isfinite(values).any():
        message = f"it is NaN or infinite on all {len(values)} bars; return finite numbers after the warm-up"
        return [Fault("undefined", message)]
    if not np.array_equal(values, compute_one(panel, feature), equal_nan=True):
        return [Fault("repeatable", "two calls on the same panel differ; draw no random numbers, keep no state")]
    return _lookahead_faults(_pipeline(_with_gap(panel, feature), make, restart))


def _lookahead_faults(pipeline: Pipeline) -> list[Fault]:
    """Faults that the look-ahead check of the audit finds."""
    advice = {"look-ahead": "; use bars up to t only", "determinism": ""}
    return [
        Fault(x.check if x.status == "fail" else "error", x.message.rstrip(".") + advice[x.check])
        for x in check_lookahead(pipeline, PROBES)
        if x.status != "pass"
    ]


def _with_gap(panel: Panel, feature: Feature) -> Panel:
    """The panel with a gap of the first ticker, if the feature can be computed on it: some code looks across gaps."""
    columns = {name: getattr(panel, name).copy() for name in panel.columns}
    tradable = panel.tradable.copy()
    for values in columns.values():
        values[GAP, 0] = np.nan
    tradable[GAP, 0] = False
    panel_with_gap = dataclasses.replace(panel, tradable=tradable, **columns)
    try:
        compute_one(panel_with_gap, feature)
    except FeatureError:
        return panel
    return panel_with_gap


def _pipeline(panel: Panel, make: Callable[[], Feature], restart: Callable[[], None] | None) -> Pipeline:
    """Prices and one feature, in float64, without decisions."""
    normaliser = build_market(panel, (RETURN,), (0, len(panel.times) - 1)).normaliser

    def build(prices: Panel) -> MarketTensor:
        feature = make()
        values = torch.from_numpy(compute_one(prices, feature)).unsqueeze(-1)
        market = build_market(prices, (RETURN,), normaliser)
        names = (unpinned(feature.name),)
        return dataclasses.replace(market, feature_names=names, features=values, raw_features=values)

    out_of_sample = len(panel.times) // 2
    return Pipeline("feature", panel, build, ExecutionRules(), CASH, out_of_sample=out_of_sample, restart=restart)


def check_extension(
    target: str, kind: str | None = None, *, steps: int | None = None, members: int | None = None
) -> list[Fault]:
    """Faults of the extension file.py:Name or package.module:Name; empty if it keeps its contract.

    kind: inferred from the object if None. steps, members: passed to `check_env` (environments only). Raises InputError
    for a file or a name that is missing.
    """
    kind, extension = find_extension(target, kind)
    reference = pin(target) if is_file_reference(target) else target
    checks: Mapping[str, Callable[[str, Any], list[Fault]]] = {
        "feature": lambda name, _: feature_faults(
            lambda: lookup(name), forget_modules if is_file_reference(name) else None
        ),
        "reward": _check_reward,
        "cost": _check_cost,
        "strategy": lambda name, _: _check_strategy(*restartable_strategy(name)),
        "policy": _check_policy,
        "algorithm": lambda name, _: _train(
            algorithm_info(name).config_class(algorithm=name, hidden=(8, 8), policy="linear")
        ),
        "environment": lambda name, _: _check_environment(name, steps, len(MEMBERS) if members is None else members),
        "source": _check_source,
        "broker": _check_broker,
    }
    return _faults(lambda: checks[kind](reference if kind != "environment" else target, extension))


def check_object(extension: object) -> tuple[str, list[Fault]]:
    """Kind and faults of a feature or a strategy class, such as one of a notebook. Raises InputError for others."""
    name = getattr(extension, "__name__", type(extension).__name__)
    kind = kind_of(extension, f"target {name!r}")
    if kind == "feature":
        feature = own_feature(name, extension)
        return kind, _faults(lambda: feature_faults(lambda: feature))
    if kind == "strategy":
        make: Any = extension
        return kind, _faults(lambda: _check_strategy(UserStrategy(make, name), None))
    raise InputError(f"{name!r} is of the kind {kind}: write it to a file, and check 'file.py:{name}'")


def _faults(check: Callable[[], list[Fault]]) -> list[Fault]:
    """The faults that a check finds, or that it stops with."""
    try:
        with stdout_to_stderr():
            return check()
    except FinrlPodError as error:
        return [Fault("error", str(error))]
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever the user's code raises is what the check tells
        return [Fault("error", own_failure(error) or f"it raised {error_text(error)}")]


def random_market() -> MarketTensor:
    """The market of `random_panel`, with two features."""
    return build_market(random_panel(), ("return_1", "return_5"), (0, BARS - 1))


def _check_reward(reference: str, _: object) -> list[Fault]:
    reward = StepReward(EnvironmentConfig(reward=reference))  # tried on one interval: raises InputError
    generator = torch.Generator().manual_seed(SEED)

    def draw(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(2, 3, 4, generator=generator)

    interval = Interval(draw(5e5, 2e6), draw(2e5, 4e6), draw(0, 1.5), draw(-0.1, 0.1))
    copies = Interval(*(x.clone() for x in interval))
    values = reward(interval, None)
    if changes := [name for name, x in copies._asdict().items() if not torch.equal(x, getattr(interval, name))]:
        return [Fault("side effect", f"it changed interval.{changes[0]}; make new tensors, not in place")]
    faults = []
    if not torch.equal(values, reward(interval, None)):
        faults.append(Fault("repeatable", "two calls on the same interval differ; draw no random numbers"))
    other_interval = Interval(draw(5e5, 2e6), draw(2e5, 4e6), draw(0, 1.5), draw(-0.1, 0.1))
    for dim in range(values.dim()):
        mixed_interval = Interval(
            *(_row_among_others(a, b, dim, 0) for a, b in zip(interval, other_interval, strict=True))
        )
        alone, mixed = (x.narrow(dim, 0, 1) for x in (values, reward(mixed_interval, None)))
        if not torch.allclose(alone, mixed, rtol=1e-5, atol=1e-7):
            message = "the reward of an account depends on other accounts; compute each by itself"
            return [*faults, Fault("accounts", message)]
    return faults


def _check_cost(reference: str, _: object) -> list[Fault]:
    cost = custom_cost(reference)
    amount = torch.linspace(0, 5_000, 101, dtype=torch.float64).unsqueeze(-1).expand(101, 3).contiguous()
    prices = torch.tensor([5.0, 50.0, 500.0], dtype=torch.float64).expand(101, 3)
    liquidity = BarLiquidity(torch.full_like(prices, 1e6), torch.full_like(prices, 0.02), torch.full_like(prices, 1e-4))
    values, slope = (getattr(cost, name)(amount, prices, liquidity) for name in ("cost", "slope"))
    for name, x in (("cost", values), ("slope", slope)):
        if not isinstance(x, torch.Tensor):
            return [Fault("type", f"{name} must return a tensor like the amount, got {type(x).__name__}")]
    if values.shape != amount.shape or slope.shape != amount.shape:
        return [Fault("shape", f"cost and slope must have shape {tuple(amount.shape)}, got {tuple(values.shape)}")]
    faults = []
    if bool((values[0] != 0).any()):
        faults.append(Fault("zero", f"the cost of 0 shares must be 0, got {float(values[0].max()):g}"))
    if bool((values < 0).any()) or not bool(torch.isfinite(values).all()):
        faults.append(Fault("sign", f"costs must be finite and at least 0, got {float(values.min()):g}"))
    curvature = values[2:] - 2 * values[1:-1] + values[:-2]
    if bool((curvature < -1e-6 * values[-1].abs()).any()):
        faults.append(Fault("convex", "the cost must be convex in the number of shares: its slope may not fall"))
    numeric = (values[2:] - values[:-2]) / (amount[2:] - amount[:-2])
    if not torch.allclose(numeric, slope[1:-1], rtol=0.02, atol=1e-6):
        faults.append(Fault("slope", "slope is not the derivative of cost by the number of shares"))
    return faults


def _check_strategy(strategy: UserStrategy, restart: Callable[[], None] | None) -> list[Fault]:
    panel = random_panel()
    names = strategy.feature_names
    market = build_market(panel, names, (0, BARS - 1))
    first = min(max(strategy.lookback or 0, 60), BARS - 60)  # where the window is full, if the panel is long enough
    rules = ExecutionRules(cost_rate=1e-3)
    period = MarketPeriod(market, first, BARS - 1, rules, CASH)
    # Raises an error that names the bar where target weights are invalid.
    equity, repeated_equity = (backtest(strategy.recreate(), panel, period).equity for _ in range(2))
    if not np.array_equal(equity, repeated_equity, equal_nan=True):
        return [Fault("repeatable", "two backtests on the same prices differ; take random numbers from a seed")]

    def build(prices: Panel) -> MarketTensor:
        return build_market(prices, names, market.normaliser if names else (0, len(prices.times) - 1))

    strategies = {unpinned(strategy.name): strategy}
    return _lookahead_faults(
        Pipeline("strategy", panel, build, rules, CASH, out_of_sample=first, strategies=strategies, restart=restart)
    )


def _check_policy(reference: str, _: object) -> list[Fault]:
    """Faults on a market; none of a policy that fits only environments without assets, or only a market."""
    market_faults = _faults(lambda: _check_market_policy(reference))
    row_faults = _faults(lambda: _check_outputs(make_policy(PolicySpec(reference, 0, 4, 2, (8, 8), "direct"))))
    if bool(market_faults) == bool(row_faults):
        return market_faults
    name = unpinned(reference)
    if market_faults:
        _log.warning("%s is for environments without assets; on a market: %s", name, market_faults[0].message)
    else:
        _log.warning("%s is for markets; train --env: %s", name, row_faults[0].message)
    return []


def _check_market_policy(reference: str) -> list[Fault]:
    make = policy_maker(reference)
    for action, size in (("tilt", ASSETS), ("softmax", ASSETS + 1), ("direct", ASSETS)):
        spec = PolicySpec(reference, ASSETS, 3, size, (8, 8), action)
        if faults := _check_outputs(make(spec)):
            return faults
    return _train(A2CConfig(policy=reference, hidden=(8, 8)))


def _check_outputs(policy: Policy) -> list[Fault]:
    spec = policy.spec
    members, bars, accounts = 2, 3, 2
    weights_by_member = [policy.init(torch.Generator().manual_seed(p), torch.float32) for p in range(members)]
    params = {name: torch.stack([member[name] for member in weights_by_member]) for name in weights_by_member[0]}
    generator = torch.Generator().manual_seed(SEED)
    inputs = spec.features if spec.assets else 0
    features = torch.randn(members, bars, spec.assets, inputs, generator=generator)
    account = torch.rand(members, bars, accounts, spec.own, generator=generator)
    account = account / account.sum(-1, keepdim=True)
    for x in params.values():
        x.requires_grad_()
    out = policy.forward(params, features, account, None)
    for name, values, shape in (
        ("mean", out.mean, (members, bars, accounts, spec.action_size)),
        ("value", out.value, (members, bars, accounts)),
    ):
        if tuple(values.shape) != shape:
            return [Fault("shape", f"{name} must have shape {shape}, got {tuple(values.shape)}")]
        if not bool(torch.isfinite(values).all()):
            return [Fault("finite", f"{name} has NaN or infinity with new weights")]
    repetition = policy.forward(params, features, account, None)
    if not (torch.equal(out.mean, repetition.mean) and torch.equal(out.value, repetition.value)):
        return [Fault("repeatable", "two calls with the same inputs differ; draw no random numbers, keep no state")]
    total = out.mean.sum() + out.log_std.sum() + out.value.sum()
    grads = torch.autograd.grad(total, list(params.values()), allow_unused=True) if total.requires_grad else ()
    if not grads:
        return [Fault("gradient", "its outputs do not depend on its weights; compute them by torch operations")]
    if unused_weights := [name for name, grad in zip(params, grads, strict=True) if grad is None]:
        cash = "with" if policy.spec.has_cash_score else "without"
        message = (
            f"the weight {unused_weights[0]!r} has no effect {cash} a score of cash; make it only where it is used"
        )
        return [Fault("gradient", message)]
    return _check_rows(policy, {name: x.detach() for name, x in params.items()}, features, account)


def _check_rows(policy: Policy, params: Mapping[str, Tensor], features: Tensor, account: Tensor) -> list[Fault]:
    """Faults of a policy whose outputs for a member, a bar or an account read the inputs of others in the batch.

    Each is computed again alone, and once more beside others. The weights are moved before: new weights are often 0 in
    the last layer and would hide a dependence.
    """
    generator = torch.Generator().manual_seed(SEED)

    def noise(x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=generator)

    params = {name: x.detach() + 0.3 * noise(x) for name, x in params.items()}
    other_inputs = (noise(features), noise(account).softmax(-1))
    outputs = policy.forward(params, features, account, None)
    for dim, (rule, row, rows, letter) in enumerate(ROWS):
        for i in range(account.shape[dim]):
            weights = {name: x[i : i + 1] for name, x in params.items()} if dim == 0 else params
            # Accounts share the features of their bar.
            row_features = features if dim == 2 else features.narrow(dim, i, 1)
            mixed_features = features if dim == 2 else _row_among_others(features, other_inputs[0], dim, i)
            mixed_account = _row_among_others(account, other_inputs[1], dim, i)
            alone_outputs = policy.forward(weights, row_features, account.narrow(dim, i, 1), None)
            mixed_outputs = policy.forward(params, mixed_features, mixed_account, None)
            for name in ("mean", "value"):
                expected_rows = getattr(outputs, name).narrow(dim, i, 1)
                for result in (getattr(alone_outputs, name), getattr(mixed_outputs, name).narrow(dim, i, 1)):
                    if result.shape != expected_rows.shape or not torch.allclose(
                        result, expected_rows, rtol=1e-4, atol=1e-5, equal_nan=True
                    ):
                        message = (
                            f"the result of {name}() for {row} depends on the other {rows} in the batch; compute no "
                            f"mean, maximum or softmax over dimension {dim} ({letter}) of features and account"
                        )
                        return [Fault(rule, message)]
    return []


def _row_among_others(x: Tensor, other_rows: Tensor, dim: int, index: int) -> Tensor:
    """Row `index` of `x` among the rows of another tensor."""
    result = other_rows.clone()
    result.narrow(dim, index, 1).copy_(x.narrow(dim, index, 1))
    return result


def _train(config: AgentConfig) -> list[Fault]:
    """Faults of two short trainings with the same seed, of one that continues the first, and of a member alone."""
    market = random_market()
    environment = EnvironmentConfig(envs=8, group=4, window=64)

    def learner(members: tuple[int, ...] = (0, 1), dtype: torch.dtype = torch.float32) -> Learner:
        env = make_env(market, environment, members=members, dtype=dtype)
        return Learner(env, config, seed=SEED, dtype=dtype)

    first = learner()
    second = learner()
    begin = {name: x.clone() for name, x in first.algorithm.weights().items()}
    samples = 3 * first.iteration_samples
    metrics = first.learn(samples)
    second.learn(samples)
    if "reward" not in metrics:
        return [Fault("metrics", 'iterate must return metrics with "reward"')]
    if not all(first.alive):
        return [Fault("finite", "the loss became NaN or infinite within three iterations")]
    weights, repeated_weights = first.algorithm.weights(), second.algorithm.weights()
    if all(torch.equal(weights[name], begin[name]) for name in weights):
        return [Fault("learning", "no weight changed in three iterations; the loss must depend on the parameters")]
    if any(not torch.equal(weights[name], repeated_weights[name]) for name in weights):
        return [Fault("repeatable", "two trainings with the same seed differ; use the generators that are passed")]
    copy = learner()
    copy.restore(first.snapshot(0), 1)
    if any(not torch.equal(copy.algorithm.weights()[name][1], weights[name][0]) for name in weights):
        return [Fault("snapshot", "a saved agent is not the same after loading; return all tensors from member()")]
    # In float64, where another order of sums cannot be mistaken for a dependence.
    pair = learner(dtype=torch.float64)
    single = learner((0,), torch.float64)
    for trainer in (pair, single):
        trainer.learn(samples)
    pair_weights = pair.algorithm.weights()
    single_weights = single.algorithm.weights()
    if all(torch.allclose(x[0], pair_weights[name][0], atol=1e-6) for name, x in single_weights.items()):
        return []
    return [Fault("members", "a member learns otherwise beside another than alone; keep the dimension P apart")]


def _check_environment(reference: str, steps: int | None, members: int) -> list[Fault]:
    make: Callable[..., VecEnv] = GymnasiumVecEnv
    if not is_gymnasium(reference):
        make = _agents_of(ParallelMultiAgentEnv) if is_parallel(reference) else load_env
    env: object = make(reference, envs=1)  # a missing file or class is bad input, not a fault
    if make is load_env and isinstance(env, MultiAgentVecEnv):
        make = _agents_of(load_joint_env)
    return check_env(
        lambda envs, ids: make(reference, envs=envs, members=ids),
        members=[5 * i for i in range(members)],
        max_steps=MAX_STEPS if steps is None else steps,
    )


def _agents_of(make: Callable[..., MultiAgentVecEnv]) -> Callable[..., VecEnv]:
    """Makes markets of many agents as environments of one: each agent of a market is an environment."""
    return lambda *args, **options: view_agents(make(*args, **options), shared=True, central=False)


def _check_source(reference: str, _: object) -> list[Fault]:
    source = open_source(reference)
    try:
        source.fetch(ASKED, first_moment("2024-01-01"), last_moment("2024-12-31"), "1d")
    except FinrlPodError as error:
        return [Fault("fetch", f"asked for daily bars of {' and '.join(ASKED)} in 2024: {error}")]
    return []


def _check_broker(_: str, broker: object) -> list[Fault]:
    if not isinstance(broker, type):
        return []  # a function that returns broker and data feed: what it returns is checked when it is opened
    return [Fault("methods", f"it has no {name}") for name in missing_members(broker, Broker)]
