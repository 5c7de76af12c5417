"""The audited pipeline from prices to decisions, recordings of its decisions and rollouts, findings, and probes.

A feature that looks ahead on m of T bars shows it only if one of those bars is probed; K random bars miss all of them
with probability (1 - m / T)^K. Calendar events, sparse features, gaps and listings are therefore probed on purpose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from finrl_pod import random
from finrl_pod.data.blocks import row_blocks
from finrl_pod.data.dates import stamp
from finrl_pod.data.flaws import MAX_SPREAD
from finrl_pod.data.panel import take_bars
from finrl_pod.errors import FinrlPodError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.variations import RecordingStrategy
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.memory import release_mapped_pages
from finrl_pod.native.device import one_thread
from finrl_pod.protocols import Strategy, VecEnv
from finrl_pod.types import Bools, FeatureTable, Floats, MarketTensor, Observation, Panel, Tensor

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


class WholeBuild(NamedTuple):
    """Prepared prices and market of all bars of a pipeline."""

    panel: Panel
    market: MarketTensor


@dataclass(frozen=True, eq=False)
class Pipeline:
    """How prices become decisions.

    prepare: preprocessing of prices before features are computed. build: makes a market from prepared prices, with the
    fitted normaliser frozen. strategies: names and strategies, an ensemble before its members; may be empty.
    make_env(market, first, last): an environment whose decisions lie on bars first to last, or None. out_of_sample:
    first bar after training; decisions are probed from here to the last bar. restart: imports the code of features and
    preparation again, so that it keeps nothing from earlier computations; None if it has no state. trained: market that
    agents were trained on, if there is one; it must equal what `build` makes of the panel.
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
    trained: MarketTensor | None = None

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

    @cached_property
    def whole(self) -> WholeBuild:
        """The build of the unchanged panel, once for all checks that only read it."""
        panel = self.prepare_panel(self.panel)
        return WholeBuild(panel, self.build(panel))

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
            if values.tobytes() == y.values[name].tobytes():  # as nearly always, and faster
                continue
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


# ---------------------------------------------------------------------- probes: bars after which prices are changed

DECISION_PROBES = 12  # at most, as each one runs the environment and every strategy
LEAD_IN = 24  # decisions that lead up to a probed bar
EARLY = (1, 5, 20, 60, 120, 250, 500)  # bars after the first, where a back-filled warm-up shows
SPARSE = 0.25  # a feature that is not zero on fewer bars than this is event-driven
JUMP = 8.0  # changes of a feature above this multiple of its median change
EVENTS = 100  # probes of a kind at most; features, gaps and listings each
WALK = 0.03  # standard deviation of the steps of a random walk of log prices
NOISE = 0.08  # standard deviation of the log factor of each price
TIE_SHARE = 0.1  # of the later bars: the close of the bar before again, or a high or low that is the open or the close
VOLUME_NOISE = 0.7
CHANGED_SHARE = 1 / 3  # of the tickers: their later bars are missing or added
MISSING_SHARE = 0.3  # of the later bars of a ticker with gaps
DIVIDEND_SHARE = 0.1  # of the later bars
DIVIDEND = 0.01  # of the close
Bars = NDArray[np.int64]


def decision_bars(pipeline: Pipeline, probes: int) -> list[int]:
    """Bars spread from the end of training to the last bar but one, none within a gap of a ticker."""
    low = max(pipeline.out_of_sample, LEAD_IN + 2)
    high = len(pipeline.panel.times) - 2
    spaced_bars = np.unique(np.linspace(low, high, max(probes, 1)).round().astype(int))
    probe_bars = []
    for t in spaced_bars:
        nearby_bars = [
            s for s in (t, *range(t - 1, max(t - 10, low) - 1, -1)) if _tradable_everywhere(pipeline.panel, s)
        ]
        probe_bars += [int(nearby_bars[0])] if nearby_bars else []
    return sorted(set(probe_bars))


def table_bars(panel: Panel, market: MarketTensor, probes: int, seed: int = 0) -> list[int]:
    """Bars at which prices and features are probed: `probes` random ones and event bars.

    market: built from the whole panel. Events are the ends of years, bars where a feature jumps or a sparse one is not
    zero, the ends and the middle of gaps, the bars around listings, and the first bars of the panel.
    """
    last = len(panel.times) - 2
    rng = np.random.default_rng(seed)
    candidates = [rng.choice(np.arange(1, last + 1), min(probes, last), replace=False)]
    year_ends = np.flatnonzero(np.diff(panel.times.astype("datetime64[Y]").astype(np.int64)))
    candidates += [np.array(EARLY), year_ends - 1, year_ends, _gap_bars(panel)]
    raw = market.raw_features.cpu().numpy()
    candidates += [_event_bars(raw[..., i]) for i in range(raw.shape[-1])]
    bars = np.unique(np.concatenate([values.astype(np.int64) for values in candidates]))
    return [int(t) for t in bars if 1 <= t <= last]


def _gap_bars(panel: Panel) -> Bars:
    """Around listings, and the bar before, the first, the middle and the last bar of gaps; the longest gaps first."""
    gaps: list[tuple[int, int]] = []  # length, first bar
    probe_bars: list[int] = []
    for n in range(panel.tradable.shape[1]):
        traded_bars = np.flatnonzero(panel.tradable[:, n])
        if not len(traded_bars):
            continue
        if traded_bars[0] > 0:
            probe_bars += [int(traded_bars[0]) + offset for offset in (-2, -1, 0, 1, *EARLY[1:])]
        breaks = np.flatnonzero(np.diff(traded_bars) > 1)
        gaps += [(int(traded_bars[i + 1] - traded_bars[i] - 1), int(traded_bars[i]) + 1) for i in breaks]
    gaps.sort(reverse=True)
    for length, first in gaps[: EVENTS // 4]:
        probe_bars += [first - 1, first, first + length // 2, first + length - 1]
    return np.array(probe_bars[: 2 * EVENTS], dtype=np.int64)


def _event_bars(raw: NDArray[np.float32]) -> Bars:
    """Bars at which a feature [T, N] jumps, or is not zero if it is zero on most bars."""
    active = np.empty(len(raw), dtype=bool)
    change = np.zeros(len(raw))
    for rows in row_blocks(raw.shape):
        previous_bar = max(rows.start - 1, 0)
        values = np.nan_to_num(raw[previous_bar : rows.stop].astype(np.float64))
        active[rows] = (values[rows.start - previous_bar :] != 0).any(1)
        change[previous_bar + 1 : rows.stop] = np.abs(np.diff(values, axis=0)).max(1)
        release_mapped_pages()
    bars = np.flatnonzero(active)
    if not len(bars):
        return bars
    if active.mean() > SPARSE:
        bars = np.flatnonzero(change > JUMP * max(float(np.median(change[active])), 1e-300))
        bars = np.unique(np.concatenate([bars - 1, bars]))
    if len(bars) <= EVENTS:
        return bars
    spread: Bars = bars[np.linspace(0, len(bars) - 1, EVENTS).round().astype(int)]
    return spread


def _tradable_everywhere(panel: Panel, t: int) -> bool:
    """Whether every ticker listed around t has a bar at t, so that dropping later bars cuts through no gap."""
    is_listed = np.asarray(panel.tradable[: t + 1].any(0) & panel.tradable[t:].any(0))
    return bool(panel.tradable[t][is_listed].all())


# ---------------------------------------------------------------------- changed panels


def permute_future(panel: Panel, t: int, seed: int) -> Panel:
    """The panel with the bars after t in random order, at the same times."""
    later_bars = np.random.default_rng(seed).permutation(np.arange(t + 1, len(panel.times)))
    shuffled_panel = take_bars(panel, np.concatenate([np.arange(t + 1), later_bars]))
    return dataclasses.replace(shuffled_panel, times=panel.times.copy())


def with_random_future(panel: Panel, t: int, seed: int, *, gaps: bool = True) -> Panel:
    """The panel with other prices, volumes, spreads, dividends, members and tables after bar t; the same up to it.

    Every ticker and every column gets factors of its own, so that neither a comparison of tickers nor a ratio of
    columns cancels them; low <= open, close <= high stays true where it was.
    gaps: a third of the tickers also ends after t, or has gaps, or trades on bars where it did not. A ticker that ended
    by t does not come back, and one in a gap does not end: environments pay for what is delisted when it ends.
    """
    rng = np.random.default_rng(seed)
    later_rows = slice(t + 1, None)
    columns = {name: getattr(panel, name).copy() for name in panel.columns}
    later_columns = {name: values[later_rows] for name, values in columns.items()}  # views
    tradable = panel.tradable.copy()
    if gaps:
        has_traded = _other_availability(panel, t, rng)
        _fill_new_bars(panel, later_columns, has_traded & ~tradable[later_rows])
        for values in later_columns.values():
            values[~has_traded] = np.nan
        tradable[later_rows] = has_traded
    _randomise(later_columns, panel.close[t], rng)
    members = panel.members
    if members is not None and gaps:
        members = members.copy()
        members[later_rows] ^= rng.random(len(panel.symbols)) < CHANGED_SHARE
    benchmark = panel.benchmark
    if benchmark is not None:
        close = benchmark.close.copy()
        close[later_rows] *= _level(close[later_rows].shape, rng) * _factors(close[later_rows].shape, NOISE, rng)
        benchmark = dataclasses.replace(benchmark, close=close)
    tables = tuple(_other_values(table, panel.times[t], rng) for table in panel.tables)
    return dataclasses.replace(panel, tradable=tradable, members=members, benchmark=benchmark, tables=tables, **columns)


def _other_values(table: FeatureTable, time: np.datetime64, rng: np.random.Generator) -> FeatureTable:
    """The table with other values in the rows that are not known before a time; blanks are filled."""
    is_later = table.known_at >= time
    if not is_later.any():
        return table
    values = table.values.copy()
    noise = rng.normal(0, 1, values[is_later].shape) * np.maximum(np.nan_to_num(values).std(axis=0), 1.0)
    values[is_later] = np.nan_to_num(values[is_later]) + noise
    return dataclasses.replace(table, values=values)


def _randomise(later_columns: dict[str, Floats], last_close: Floats, rng: np.random.Generator) -> None:
    """Multiply the later rows of all columns, in place, by random factors. last_close: [N] of the bar before."""
    shape = later_columns["close"].shape
    level = _level(shape, rng)
    original_columns = {name: values.copy() for name, values in later_columns.items()}
    inner = [column for column in ("open", "close") if column in later_columns]
    for column in inner:
        later_columns[column] *= level * _factors(shape, NOISE, rng)
    earlier_close = np.vstack([last_close[None], later_columns["close"]])[:-1]
    is_repeat = (rng.random(shape) < TIE_SHARE) & np.isfinite(earlier_close) & np.isfinite(later_columns["close"])
    later_columns["close"][is_repeat] = earlier_close[is_repeat]
    # The distances of the high above, and of the low below, the open and the close.
    for name, extreme, sign in (("high", np.maximum, 1.0), ("low", np.minimum, -1.0)):
        if name in later_columns:
            distance = original_columns[name] / extreme.reduce([original_columns[column] for column in inner])
            distance *= np.exp(sign * np.abs(rng.normal(0, NOISE, shape)))
            distance[(rng.random(shape) < TIE_SHARE) & np.isfinite(distance)] = 1.0
            later_columns[name][:] = extreme.reduce([later_columns[column] for column in inner]) * distance
    if "split_close" in later_columns:
        later_columns["split_close"] *= later_columns["close"] / original_columns["close"]
    if "volume" in later_columns:
        later_columns["volume"] *= _factors(shape, VOLUME_NOISE, rng)
    if "spread" in later_columns:  # a fraction of the price
        limit = np.nextafter(MAX_SPREAD, 0.0)
        later_columns["spread"][:] = np.minimum(later_columns["spread"] * _factors(shape, VOLUME_NOISE, rng), limit)
    if "dividend" in later_columns:
        later_columns["dividend"][:] = DIVIDEND * (rng.random(shape) < DIVIDEND_SHARE) * later_columns["close"]


def _level(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Random walks that start at 1, one per column."""
    walk: Floats = np.exp(np.cumsum(rng.normal(0, WALK, shape), 0))
    return walk


def _factors(shape: tuple[int, ...], scale: float, rng: np.random.Generator) -> Floats:
    factors: Floats = np.exp(rng.normal(0, scale, shape))
    return factors


def _other_availability(panel: Panel, t: int, rng: np.random.Generator) -> Bools:
    """[T - t - 1, N], True on the later bars on which a ticker trades, with changes to a third of the tickers."""
    has_traded = panel.tradable[t + 1 :].copy()
    bars, assets = has_traded.shape
    count = int(assets * CHANGED_SHARE + rng.random())
    for n in rng.permutation(assets)[:count] if bars else ():
        trades_now = bool(panel.tradable[t, n])
        later_bars = np.flatnonzero(has_traded[:, n])
        # Often at once: some code looks one bar ahead, other code further.
        first = 0 if rng.random() < 0.5 else int(rng.integers(bars))
        kind = rng.choice(["end", "gap", "new bars"])
        if kind == "end" and trades_now:
            has_traded[first:, n] = False
        elif kind == "gap" and len(later_bars) > 1:
            missing = later_bars[:-1][rng.random(len(later_bars) - 1) < MISSING_SHARE]
            has_traded[missing, n] = has_traded[min(first, later_bars[-2]), n] = False
        elif len(later_bars) or not panel.tradable[: t + 1, n].any():
            has_traded[first:, n] = True
    return has_traded


def _fill_new_bars(panel: Panel, later_columns: dict[str, Floats], is_added: Bools) -> None:
    """Set the `added` [K, N] bars of the last K rows of all columns to usual values, in place."""
    for n in np.flatnonzero(is_added.any(0)):
        closes = panel.close[panel.tradable[:, n], n]
        price = closes[0] if len(closes) else np.nanmedian(panel.close)
        for name, values in later_columns.items():
            original_values = getattr(panel, name)
            usual_value = (
                price if name in ("open", "high", "low", "close") else np.nanmedian(original_values[panel.tradable])
            )
            values[is_added[:, n], n] = usual_value
