"""Check look-ahead: change the bars after t; nothing computed or decided up to t may change.

The pipeline is compared stage by stage, from prices to decisions; the first stage that changes is at fault. Later bars
are replaced by random ones, permuted and dropped, and later prices in the store are replaced where custom code loads
them. A change that does not repeat is not a look-ahead but chance.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence, Set
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from finrl_pod.data.panel import cut
from finrl_pod.data.store import replaced_panels
from finrl_pod.errors import FeatureError, UndefinedFeatureError
from finrl_pod.evaluate.audit import determinism
from finrl_pod.evaluate.audit.pipeline import (
    DECISION_PROBES,
    LEAD_IN,
    Finding,
    Pipeline,
    PreparationError,
    RolloutStep,
    decision_bars,
    decision_difference,
    first_difference,
    permute_future,
    record_decisions,
    rollout,
    table_bars,
    with_random_future,
)
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.types import Floats, MarketTensor, Panel, Tensor

CHECK = "look-ahead"
PROBES = 300  # random bars at which prices and features are probed
HISTORY, AHEAD = 700, 260  # bars before t, at most, and after t that a probe computes on
BLOCK = 128  # probes within so many bars share the computation on unchanged prices
REPEATS = 3  # computations that must agree before a change is called a look-ahead
STORE_SEED = 5  # of the prices that custom code loads
TOLERANCE = 1e-5  # relative to the value, or to the mean of a table if that is larger; a leak changes per cents
DECISION_TOLERANCE = 1e-4  # sum of absolute differences of weights: policies compute in float32
RANDOM_FUTURE = "other prices and gaps after it"
OTHER_STORE = "other prices after it in the store"
TABLE_STAGES = ("prices", "features", "market")

Changes = Iterator[tuple[str, int]]  # part, row


class Fault(NamedTuple):
    """A part that changes with later bars: its stage, its name, the first bar, and how later bars were changed."""

    stage: str
    part: str
    bar: int
    how: str


class PipelineRun:
    """One run of the pipeline on a panel: prepared prices, market, and decisions and rollouts, each computed once.

    known: last time whose prices custom code finds unchanged in the store; None leaves the store as it is.
    loads_panels: whether custom code has loaded panels.
    """

    def __init__(self, pipeline: Pipeline, panel: Panel, known: np.datetime64 | None = None) -> None:
        self.pipeline = pipeline
        self.source = panel
        self.known = known
        self.loads_panels = False
        with self._store():
            self.panel = pipeline.prepare_panel(panel)
            self.market: MarketTensor = pipeline.build(self.panel)
        self._decisions: dict[str, list[Floats | None]] = {}
        self._rollouts: dict[tuple[int, int], list[RolloutStep]] = {}

    def decisions(self, name: str, first: int, k: int) -> list[Floats | None]:
        """Decisions of a strategy at the bars from `first` to k that can fill."""
        if name not in self._decisions:
            strategy = self.pipeline.strategies[name]
            last = min(k + 1, len(self.panel.times) - 1)
            period = MarketPeriod(self.market, first, last, self.pipeline.rules, self.pipeline.cash)
            with self._store():
                self._decisions[name] = record_decisions(strategy, self.panel, period)
        return self._decisions[name]

    def rollout(self, first: int, last: int) -> list[RolloutStep]:
        """Rollout of an environment whose decisions lie on bars first to last."""
        if (first, last) not in self._rollouts and self.pipeline.make_env is not None:
            with self._store():
                self._rollouts[first, last] = rollout(self.pipeline.make_env(self.market, first, last), LEAD_IN)
        return self._rollouts[first, last]

    def again(self, k: int, stages: Sequence[str]) -> PipelineRun:
        """The same run once more, with the decisions up to k if they are among the stages."""
        run = PipelineRun(self.pipeline, self.source, self.known)
        run.decide(k, stages)
        return run

    @contextlib.contextmanager
    def _store(self) -> Iterator[None]:
        """Notice panels that custom code loads, and change their prices after `known`."""
        restart = self.pipeline.restart if self.known is not None else None

        def replace(panel: Panel) -> Panel:
            self.loads_panels = True
            if self.known is None:
                return panel
            last = int(np.searchsorted(panel.times, self.known, "right")) - 1
            return with_random_future(panel, last, STORE_SEED, gaps=False)

        try:
            with replaced_panels(replace):
                if restart is not None:
                    restart()
                yield
        finally:
            if restart is not None:
                restart()

    def decide(self, k: int, stages: Sequence[str]) -> None:
        """Record all decisions up to k, before another market exists that a strategy might get hold of."""
        for name in self.pipeline.strategies if "decisions" in stages else ():
            self.decisions(name, max(k - LEAD_IN, 0), k)


def check_lookahead(
    pipeline: Pipeline,
    probes: int = PROBES,
    *,
    ignored_names: Set[str] = frozenset(),
    seed: int = 0,
) -> list[Finding]:
    """One failure for each part that depends on later bars, with its first bar; a single pass if there is none.

    probes: random bars at which prices and features are probed, besides event bars (`table_bars`). ignored_names: parts
    that are not deterministic. Parts that turn out not to be are reported as a failed determinism check.
    """
    search = _Search(pipeline, set(ignored_names))
    with replaced_panels(search.notice):
        if pipeline.restart is not None:
            pipeline.restart()  # what its code loads on import is loaded again
        market = pipeline.whole.market
    tables = table_bars(pipeline.panel, market, probes, seed)
    history = min(market.first + LEAD_IN, HISTORY)
    while tables:
        end = bisect_left(tables, tables[0] + BLOCK)
        _probe_tables(search, tables[:end], history, seed)
        tables = tables[end:]
    _probe_state(search)
    decisions = decision_bars(pipeline, min(probes, DECISION_PROBES))
    for t in decisions:
        _probe_decisions(search, t, seed)
    findings = []
    for stage, name, t, change_name in search.faults.values():
        bar = pipeline.bar(t)
        message = f"{name} ({stage}) depends on the future: its value at {bar} changes with {change_name}."
        findings.append(Finding(CHECK, "fail", name, message, bar))
    findings += search.not_deterministic
    for error, t in search.unprobed_errors.items():
        bar = pipeline.bar(min(t, len(pipeline.panel.times) - 1))
        message = f"Features could not be checked for look-ahead on bars from {bar} on: {error}."
        findings.append(Finding(CHECK, "warn", "features", message, bar))
    if search.faults or search.not_deterministic or not search.probe_count:
        return findings
    message = (
        f"Changing later bars changes no prices, features or market (probed at {search.probe_count} bars), and no "
        f"environment or decisions (at {len(decisions)})."
    )
    return [*findings, Finding(CHECK, "pass", pipeline.name, message, value=search.probe_count)]


class _Search:
    """Faults found so far: the earliest of each part, and the parts that are not deterministic.

    probe_count: bars at which tables were compared. unprobed_errors: errors that prevented it, with their first bars.
    loads_panels: whether custom code has loaded panels of a store.
    """

    def __init__(self, pipeline: Pipeline, ignored_names: set[str]) -> None:
        self.pipeline = pipeline
        self.ignored_names = ignored_names
        self.faults: dict[tuple[str, str], Fault] = {}
        self.not_deterministic: list[Finding] = []
        self.probe_count = 0
        self.unprobed_errors: dict[str, int] = {}
        self.loads_panels = False

    def notice(self, panel: Panel) -> Panel:
        """The panel that custom code loads."""
        self.loads_panels = True
        return panel

    def compare(
        self,
        base: PipelineRun,
        changed_run: PipelineRun,
        k: int,
        start: int,
        change_name: str,
        stages: Sequence[str],
        *,
        confirm: bool = True,
    ) -> None:
        """Record the parts of the first stage that differs up to row k.

        start: bar of the panel at row 0. confirm: repeat a difference before it counts.
        """
        for stage in stages:
            differences = [
                (name, row) for name, row in _STAGES[stage](base, changed_run, k) if name not in self.ignored_names
            ]
            is_new = any((stage, name) not in self.faults for name, _ in differences)
            repeated = _repeated_parts(base, changed_run, k, stage, stages) if confirm and is_new else set()
            for name, row in differences:
                fault = Fault(stage, name, start + row, change_name)
                earlier_fault = self.faults.get((stage, name))
                if earlier_fault is not None:
                    self.faults[stage, name] = min(earlier_fault, fault, key=lambda fault_found: fault_found.bar)
                elif not confirm or name in repeated:
                    self.faults[stage, name] = fault
                else:
                    self.ignored_names.add(name)
                    self.not_deterministic.append(determinism.failure(self.pipeline, name, fault.bar))
            if differences:
                return


def _repeated_parts(base: PipelineRun, changed_run: PipelineRun, k: int, stage: str, stages: Sequence[str]) -> set[str]:
    """Parts that differ each time that both runs are repeated, while unchanged runs agree with each other."""

    def parts(first_run: PipelineRun, second_run: PipelineRun) -> set[str]:
        return {name for name, _ in _STAGES[stage](first_run, second_run, k)}

    repeated = parts(base, changed_run)
    for _ in range(REPEATS):
        repeated_base = base.again(k, stages)
        repeated_change = changed_run.again(k, stages)
        repeated &= parts(repeated_base, repeated_change)
        repeated -= parts(base, repeated_base) | parts(changed_run, repeated_change)
        if not repeated:
            break
    return repeated


def _probe_tables(search: _Search, block: Sequence[int], history: int, seed: int) -> None:
    """Probe prices, features and market at nearby bars with other prices after each.

    history: bars before the first of them, in which its features become defined.
    """
    panel = search.pipeline.panel
    start = max(0, block[0] - history)
    bars = len(panel.times)

    def part(t: int) -> Panel:
        return cut(panel, start, min(bars, max(t + 1 + AHEAD, start + history + AHEAD)))

    base = _run_on_part(search, part(block[-1]), block[0])
    if base is None:
        return
    search.loads_panels |= base.loads_panels
    for t in block:
        changed_run = _run_with_random_future(search, part(t), t - start, t, seed + t)
        if changed_run is not None:
            search.compare(base, changed_run, t - start, start, RANDOM_FUTURE, TABLE_STAGES)
            search.probe_count += 1
        if search.loads_panels:
            store_run = _run_on_part(search, part(t), t, known=panel.times[t])
            if store_run is not None:
                search.compare(base, store_run, t - start, start, OTHER_STORE, TABLE_STAGES)


def _run_on_part(search: _Search, panel: Panel, t: int, known: np.datetime64 | None = None) -> PipelineRun | None:
    """Run the pipeline on a part of the panel, or return None if its features cannot be computed there.

    known: time, as in `PipelineRun`. Features that are defined on none of the bars are normal. An error of their code
    is recorded with bar t.
    """
    try:
        return PipelineRun(search.pipeline, panel, known)
    except UndefinedFeatureError:
        return None
    except FeatureError as error:
        search.unprobed_errors.setdefault(str(error), t)
        return None


def _run_with_random_future(search: _Search, panel: Panel, k: int, t: int, seed: int) -> PipelineRun | None:
    """Run the pipeline with random bars after row k (bar t of the whole panel); None as for `_run_on_part`.

    Code that fails where a ticker has no bar gets other prices only.
    """
    try:
        return PipelineRun(search.pipeline, with_random_future(panel, k, seed))
    except PreparationError:
        raise
    except Exception:  # noqa: BLE001  features and preparations are code of users
        return _run_on_part(search, with_random_future(panel, k, seed, gaps=False), t)


def _probe_state(search: _Search) -> None:
    """Compare tables computed on all bars with tables of code that has only seen the first half, or the training bars.

    Finds numbers that code fits on its first call and keeps, such as bounds for clipping.
    """
    pipeline = search.pipeline
    panel = search.pipeline.panel
    if pipeline.restart is None:
        return
    for stop in sorted({len(panel.times) // 2, pipeline.out_of_sample}):
        try:
            pipeline.restart()
            early_run = PipelineRun(pipeline, cut(panel, 0, stop))
            pipeline.restart()
            search.compare(
                PipelineRun(pipeline, panel),
                early_run,
                stop - 1,
                0,
                "numbers kept from a computation on later bars",
                TABLE_STAGES,
                confirm=False,
            )
        except UndefinedFeatureError:
            continue
        except FeatureError as error:
            search.unprobed_errors.setdefault(str(error), stop)


def _probe_decisions(search: _Search, t: int, seed: int) -> None:
    """Probe all stages at one bar, with other bars after it, in another order, without any, and with another store."""
    pipeline = search.pipeline
    start = max(0, t - HISTORY)
    panel = cut(pipeline.panel, start, min(len(pipeline.panel.times), t + 1 + AHEAD))
    k = t - start
    changes: dict[str, Callable[[], PipelineRun | None]] = {
        RANDOM_FUTURE: lambda: _run_with_random_future(search, panel, k, t, seed + t),
        "the bars after it in another order": lambda: _run_on_part(search, permute_future(panel, k, seed + t), t),
        "no bars after it": lambda: _run_on_part(search, cut(panel, 0, k + 1), t),
    }
    stages = tuple(_STAGES)
    base = _run_on_part(search, panel, t)
    if base is None:
        return
    base.decide(k, stages)
    search.loads_panels |= base.loads_panels
    if search.loads_panels:
        changes[OTHER_STORE] = lambda: _run_on_part(search, panel, t, known=pipeline.panel.times[t])
    for change_name, change in changes.items():
        changed_run = change()
        if changed_run is not None:
            search.compare(base, changed_run, k, start, change_name, stages)


# ---------------------------------------------------------------------- stages


def _compare_prices(base: PipelineRun, changed_run: PipelineRun, k: int) -> Changes:
    """Prepared prices up to k."""
    for column in (*base.panel.columns, "tradable"):
        a = getattr(base.panel, column)
        b = getattr(changed_run.panel, column)
        yield from _compare_rows(f"the preparation of {column}", a[: k + 1], b[: k + 1])


def _compare_features(base: PipelineRun, changed_run: PipelineRun, k: int) -> Changes:
    """Raw features up to k; if these are equal, normalised features."""
    a = base.market
    b = changed_run.market
    if all(
        _has_equal_bits(x[: k + 1], y[: k + 1]) for x, y in ((a.raw_features, b.raw_features), (a.features, b.features))
    ):
        return
    raw = [
        change
        for i, name in enumerate(a.feature_names)
        for change in _compare_rows(f"feature {name}", a.raw_features[: k + 1, :, i], b.raw_features[: k + 1, :, i])
    ]
    yield from raw
    for i, name in enumerate(a.feature_names if not raw else ()):
        yield from _compare_rows(f"the normaliser of {name}", a.features[: k + 1, :, i], b.features[: k + 1, :, i])


def _compare_markets(base: PipelineRun, changed_run: PipelineRun, k: int) -> Changes:
    """Closes, tradability and turbulence up to k; fills and spreads of the decisions up to k - 1."""
    for table, name, stop in (
        ("close", "the closing price for valuation", k + 1),
        ("tradable", "the mask of tradable tickers", k + 1),
        ("turbulence", "turbulence", k + 1),
        ("fill", "the fill price", k),
        ("half_spread", "the spread of fills", k),
        ("fillable", "the mask of fillable tickers", k),
    ):
        a, b = (getattr(run.market, table) for run in (base, changed_run))
        if a is not None and b is not None:
            yield from _compare_rows(name, a[:stop], b[:stop])


def _compare_environments(base: PipelineRun, changed_run: PipelineRun, k: int) -> Changes:
    """Rollouts of two environments on the bars before k, with the same actions from the same seed."""
    first, last = max(k - LEAD_IN, base.market.first), min(k, changed_run.market.steps - 1)
    if base.pipeline.make_env is None or first > last:
        return
    difference = first_difference(
        base.rollout(first, last), changed_run.rollout(first, last), TOLERANCE, last_known_bar=k
    )
    if difference is not None:
        name, row = difference
        yield f"the environment's {name}", row


def _compare_decisions(base: PipelineRun, changed_run: PipelineRun, k: int) -> Changes:
    """Decisions of the ensemble; if they change, decisions of the members whose change it passes on."""
    first = max(k - LEAD_IN, 0)
    if not base.pipeline.strategies:
        return
    ensemble, *members = base.pipeline.strategies
    row = _first_other_decision(ensemble, base, changed_run, first, k)
    if row is None:
        return
    rows = {name: _first_other_decision(name, base, changed_run, first, k) for name in members}
    faulty = {name: row for name, row in rows.items() if row is not None} or {ensemble: row}
    yield from ((f"strategy {name}", first + row) for name, row in faulty.items())


def _first_other_decision(name: str, base: PipelineRun, changed_run: PipelineRun, first: int, k: int) -> int | None:
    a, b = (run.decisions(name, first, k) for run in (base, changed_run))
    # Without bars after k the decision at k cannot fill: there is one decision less.
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if decision_difference(x, y) > DECISION_TOLERANCE), None)


_STAGES: dict[str, Callable[[PipelineRun, PipelineRun, int], Changes]] = {
    "prices": _compare_prices,
    "features": _compare_features,
    "market": _compare_markets,
    "environment": _compare_environments,
    "decisions": _compare_decisions,
}


def _has_equal_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two float32 tables are the same, NaNs included; much faster than a comparison with a tolerance."""
    return a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))


def _compare_rows(name: str, a: ArrayLike, b: ArrayLike) -> Changes:
    """(part, first row in which two arrays [T, ...] differ), if they do.

    The tolerance is relative to the value, or to the mean absolute value of its column if that is larger and below 1.
    """
    x, y = np.asarray(a), np.asarray(b)
    if x.shape != y.shape:
        yield name, 0
        return
    if x.dtype == y.dtype and x.tobytes() == y.tobytes():  # as nearly always, and faster
        return
    x, y = x.astype(np.float64), y.astype(np.float64)
    is_known = np.isfinite(x)
    mean = np.where(is_known, np.abs(x), 0.0).sum(0) / np.maximum(is_known.sum(0), 1)
    is_close = np.isclose(x, y, rtol=TOLERANCE, atol=TOLERANCE * np.minimum(mean, 1.0), equal_nan=True)
    rows = is_close.reshape(len(x), -1).all(1)
    if not rows.all():
        yield name, int(np.argmin(rows))
