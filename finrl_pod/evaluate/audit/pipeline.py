"""The audited pipeline from prices to decisions, recordings of its decisions and rollouts, and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from finrl_pod import random
from finrl_pod.data.dates import stamp
from finrl_pod.errors import FinrlPodError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.variations import RecordingStrategy
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.native.threads import one_thread
from finrl_pod.protocols import Strategy, VecEnv
from finrl_pod.types import Bools, Floats, MarketTensor, Observation, Panel, Tensor

Status = Literal["pass", "warn", "fail"]


class PreparationError(FinrlPodError):
    """The preparation of prices returns other tickers or bars than it was given."""


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    check: look-ahead, leakage, warm-up, fills, data, sensitivity or determinism. status: "fail" makes results
    worthless, "warn" deserves doubt. part: the feature or step concerned. message: one sentence. bar: the first bar
    (ISO) at which the fault appears. value: the figure in the message, if any.
    """

    check: str
    status: Status
    part: str
    message: str
    bar: str | None = None
    value: float | None = None


def clean(findings: Iterable[Finding]) -> bool:
    """Whether no finding is a failure."""
    return not any(finding.status == "fail" for finding in findings)


@dataclass(frozen=True, eq=False)
class Pipeline:
    """How prices become decisions.

    prepare: preprocessing of prices before features are computed. build: makes a market from prepared prices, with the
    fitted normaliser frozen. strategies: names and strategies, an ensemble before its members; may be empty.
    make_env(market, first, last): an environment whose decisions lie on bars first to last, or None. out_of_sample:
    first bar after training; decisions are probed from here to the last bar. restart: imports the code of features and
    preparation again, so that it keeps nothing from earlier computations; None if it has no state.
    """

    name: str
    panel: Panel
    build: Callable[[Panel], MarketTensor]
    rules: ExecutionRules
    cash: float
    out_of_sample: int
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    make_env: Callable[[MarketTensor, int, int], VecEnv] | None = None
    prepare: Callable[[Panel], Panel] = lambda panel: panel
    restart: Callable[[], None] | None = None

    def prepare_panel(self, panel: Panel) -> Panel:
        """Prepared prices. Raises PreparationError if the preparation drops or adds tickers or bars."""
        prices = self.prepare(panel)
        if prices.symbols != panel.symbols:
            dropped_symbols = ", ".join(symbol for symbol in panel.symbols if symbol not in prices.symbols)
            change = f"changes the tickers to {', '.join(prices.symbols)}"
            if dropped_symbols:
                change = f"drops {dropped_symbols}"
            raise PreparationError(
                f"the preparation of prices {change}: that selects tickers by bars that a decision cannot know; make "
                "them untradable from the bar on that shows why"
            )
        if not np.array_equal(prices.times, panel.times):
            raise PreparationError(
                f"the preparation of prices turns {len(panel.times)} bars into {len(prices.times)} others: keep all "
                "bars"
            )
        return prices

    def bar(self, t: int) -> str:
        """Time of a bar of the panel, as messages show it."""
        return stamp(self.panel.times[t], self.panel.bar)


# ---------------------------------------------------------------------- decisions of a strategy


def fresh_copy(strategy: Strategy) -> Strategy:
    """The strategy without state from earlier calls, if it has a method `recreate`."""
    recreate: Callable[[], Strategy] | None = getattr(strategy, "recreate", None)
    return strategy if recreate is None else recreate()


def record_decisions(strategy: Strategy, panel: Panel, period: MarketPeriod) -> list[Floats | None]:
    """Decisions of a fresh copy of a strategy at every bar of a period but the last."""
    recording = RecordingStrategy(fresh_copy(strategy))
    backtest(recording, panel, period)
    return recording.decisions


def decision_difference(a: Floats | None, b: Floats | None) -> float:
    """Sum of absolute differences of two decisions [N]; infinite if only one of them is None."""
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    total = float(np.abs(a - b).sum())
    return total if np.isfinite(total) else float("inf")


# ---------------------------------------------------------------------- rollouts of an environment

STEP_FIELDS = ("reward", "terminated", "truncated", "equity", "turnover", "cost")


class RolloutStep(NamedTuple):
    """bar: [P, E] bar of the decision, or number of the step if observations have no bar. values: arrays by name."""

    bar: Floats
    values: dict[str, Floats]


@one_thread()
def rollout(env: VecEnv, steps: int, seed: int = 0) -> list[RolloutStep]:
    """Step an environment with random actions; record every observation and everything that `step` returns."""
    generator = random.generator(seed, 0, "audit actions")
    observation = env.reset(seed)
    rollout_steps = [RolloutStep(_bars(observation, env, 0), {"observation": _observation_array(observation, env)})]
    for i in range(steps):
        action = random_actions(env, generator, torch.randn)
        bar = _bars(observation, env, i)
        outcome = env.step(action)
        values = {name: _array(getattr(outcome, name)) for name in STEP_FIELDS}
        values["final observation"] = _observation_array(outcome.final_observation, env)
        rollout_steps.append(RolloutStep(bar, values))
        observation = outcome.observation
        observation_values = {"observation": _observation_array(observation, env)}
        rollout_steps.append(RolloutStep(_bars(observation, env, i + 1), observation_values))
    return rollout_steps


def random_actions(env: VecEnv, generator: torch.Generator, draw: Callable[..., Tensor]) -> Tensor:
    """Random actions [P, E, D]: from `draw` (torch.randn, torch.rand), or choices for a discrete environment."""
    shape = (env.members, env.envs, env.action_size)
    if env.action_kind == "discrete":
        return torch.randint(env.actions, shape, generator=generator)
    return draw(shape, generator=generator)


def first_difference(
    a: list[RolloutStep], b: list[RolloutStep], tolerance: float, last_known_bar: float = float("inf")
) -> tuple[str, int] | None:
    """Name and bar of the earliest difference of two rollouts, or None. Relative tolerance; NaN equals NaN.

    last_known_bar: last bar whose prices are the same in both. Observations are compared up to this bar, results of a
    decision up to the bar before (it fills one bar later), and rewards up to two bars before.
    """
    earliest: tuple[str, int] | None = None
    for x, y in zip(a, b, strict=True):
        for name, values in x.values.items():
            wrong: Bools = ~np.isclose(values, y.values[name], rtol=tolerance, atol=tolerance, equal_nan=True)
            delay = {"observation": 0, "reward": 2}.get(name, 1)
            wrong = np.asarray(wrong.reshape(*x.bar.shape, -1).any(-1)) & (x.bar <= last_known_bar - delay)
            if wrong.any():
                bar = int(x.bar[wrong].min())
                if earliest is None or bar < earliest[1]:
                    earliest = name, bar
    return earliest


def _bars(observation: Any, env: VecEnv, step: int) -> Floats:
    if not isinstance(observation, Observation):
        return np.full((env.members, env.envs), float(step))
    bar = _array(observation.bar)  # [P, G]
    return np.repeat(bar, env.envs // bar.shape[1], axis=1)


def _observation_array(observation: Any, env: VecEnv) -> Floats:
    """Observation [P, E, ...] without its bar, a separate field of `RolloutStep`."""
    values = observation.account if isinstance(observation, Observation) else observation
    return _array(values).reshape(env.members, env.envs, -1)


def _array(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float64)
