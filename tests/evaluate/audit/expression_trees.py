"""Random expressions of past and later bars, and what the look-ahead check says of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from finrl_pod_app.setup.extension_checks import PROBES, random_panel

from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.audit.lookahead import check_lookahead
from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import Floats, MarketTensor, Panel

BARS, ASSETS, DEPTH = 120, 5, 3
PAST, LATER = 5, 3  # bars that a leaf looks back and ahead at most
COLUMNS = ("open", "high", "low", "close", "volume")
SHARE = 0.01  # of the values that a redrawn future changes
BATCH = 250  # expressions that one check covers
Tree = tuple[Any, ...]  # ("leaf", column, lag) or an operation with its arguments


def defined(x: Floats) -> Floats:
    return np.where(np.isfinite(x), x, -9.0)


def rank(x: Floats) -> Floats:
    return np.asarray(defined(x).argsort(1, kind="stable").argsort(1, kind="stable") * 1.0)


def less_mean(x: Floats) -> Floats:
    return np.asarray(x - np.where(np.isfinite(x), x, 0.0).mean(1, keepdims=True))


def count_of_positive(x: Floats) -> Floats:
    return np.repeat((defined(x) > 0).mean(1, keepdims=True), x.shape[1], 1)


def mean_of_past(x: Floats) -> Floats:
    return np.asarray(np.cumsum(np.nan_to_num(x), 0) / np.arange(1, len(x) + 1)[:, None])


def ratio(x: Floats, y: Floats) -> Floats:
    return np.asarray(x / (1.0 + np.abs(y)))


def is_above(x: Floats, y: Floats) -> Floats:
    return (x > y) * 1.0


UNARY = {f.__name__: f for f in (rank, less_mean, count_of_positive, mean_of_past)}
BINARY = {"minus": np.subtract, "lower": np.fmin, "higher": np.fmax, "ratio": ratio, "is_above": is_above}


class Leaves:
    """Shifted logarithms of the columns of a panel."""

    def __init__(self, panel: Panel) -> None:
        self.logs = {column: np.log(getattr(panel, column)) for column in COLUMNS}
        self.shifted = functools.cache(self.shift)

    def shift(self, column: str, lag: int) -> Floats:
        values = self.logs[column]
        shifted = np.full_like(values, np.nan)
        if lag >= 0:
            shifted[lag:] = values[: len(values) - lag]
        else:
            shifted[:lag] = values[-lag:]
        return shifted

    def value(self, tree: Tree) -> Floats:
        if tree[0] == "leaf":
            return self.shifted(*tree[1:])
        arguments = [self.value(argument) for argument in tree[1:]]
        operation: Any = UNARY.get(tree[0]) or BINARY[tree[0]]
        values: Floats = operation(*arguments)
        return values


def random_trees(count: int, looks_ahead: bool, seed: int) -> list[Tree]:
    """Random expressions of past bars, or of later bars that change at least a `SHARE` of the values."""
    rng = np.random.default_rng(seed)
    if not looks_ahead:
        return [_random_tree(rng, DEPTH, looks_ahead) for _ in range(count)]
    panel = random_panel(BARS, ASSETS)
    leaves = Leaves(panel)
    redrawn = [(t, Leaves(_redraw(panel, t, rng))) for t in range(20, BARS - PAST, 10)]
    trees: list[Tree] = []
    while len(trees) < count:
        tree = _random_tree(rng, DEPTH, looks_ahead)
        if _changed_share(tree, leaves, redrawn) >= SHARE:
            trees.append(tree)
    return trees


def _random_tree(rng: np.random.Generator, depth: int, looks_ahead: bool) -> Tree:
    if depth == 0 or (depth < DEPTH and rng.random() < 0.2):
        lags = (-LATER, PAST) if looks_ahead else (0, PAST)
        return ("leaf", str(rng.choice(COLUMNS)), int(rng.integers(*lags, endpoint=True)))
    names = list(UNARY if rng.random() < 0.4 else BINARY)
    name = names[rng.integers(len(names))]
    return (name, *(_random_tree(rng, depth - 1, looks_ahead) for _ in range(1 if name in UNARY else 2)))


def _changed_share(tree: Tree, leaves: Leaves, redrawn: list[tuple[int, Leaves]]) -> float:
    """Share of the values up to bar t, of those that a leaf can reach, that change with redrawn later bars."""
    values = leaves.value(tree)
    changes = []
    for t, other_leaves in redrawn:
        rows = slice(t + 1 - LATER, t + 1)
        changes.append(~np.isclose(values[rows], other_leaves.value(tree)[rows], rtol=1e-4, atol=1e-9, equal_nan=True))
    return float(np.mean(changes))


def _redraw(panel: Panel, t: int, rng: np.random.Generator) -> Panel:
    columns = {name: getattr(panel, name).copy() for name in COLUMNS}
    for values in columns.values():
        values[t + 1 :] *= np.exp(rng.normal(0, 0.1, values[t + 1 :].shape))
    prices = [columns[name] for name in COLUMNS[:4]]
    columns["high"] = np.fmax.reduce(prices)
    columns["low"] = np.fmin.reduce(prices)
    return dataclasses.replace(panel, **columns)


def accused_trees(trees: Sequence[Tree]) -> set[int]:
    """Indices of the expressions in which the audit finds look-ahead."""
    panel = random_panel(BARS, ASSETS)
    normaliser = build_market(panel, ("return_1",), (0, BARS - 1)).normaliser
    accused: set[int] = set()
    for start in range(0, len(trees), BATCH):
        batch = trees[start : start + BATCH]
        names = tuple(str(start + i) for i in range(len(batch)))

        def build(prices: Panel, batch: Sequence[Tree] = batch, names: tuple[str, ...] = names) -> MarketTensor:
            leaves = Leaves(prices)
            values = torch.from_numpy(np.stack([leaves.value(tree) for tree in batch], -1))
            market = build_market(prices, ("return_1",), normaliser)
            return dataclasses.replace(market, feature_names=names, features=values, raw_features=values)

        pipeline = Pipeline("trees", panel, build, ExecutionRules(), 1e6, out_of_sample=BARS // 2)
        findings = check_lookahead(pipeline, PROBES)
        accused |= {int(finding.part.removeprefix("feature ")) for finding in findings if finding.status != "pass"}
    return accused
