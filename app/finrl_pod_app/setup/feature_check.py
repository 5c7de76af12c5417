"""Check of features on a small random market: values, repeatability, and look-ahead by the engine of the audit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from finrl_pod_envs.custom.contract import Fault

from finrl_pod.data.features import Feature, compute_one
from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.audit.lookahead import check_lookahead
from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import Benchmark, MarketTensor, Panel
from finrl_pod.user_files import unpinned

BARS, ASSETS, SEED = 420, 6, 7
PROBES = 40  # random bars after which all later ones are changed
GAP = slice(200, 208)  # bars on which one ticker does not trade
CASH = 1e6
RETURN = "return_1"  # a feature of the market whose features are replaced


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
    panel, feature = random_panel(), make()
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
    findings = check_lookahead(_pipeline(_with_gap(panel, feature), make, restart), PROBES)
    rules = {"look-ahead": "; use bars up to t only", "determinism": ""}
    return [
        Fault(
            finding.check if finding.status == "fail" else "error", finding.message.rstrip(".") + rules[finding.check]
        )
        for finding in findings
        if finding.status != "pass"
    ]


def _with_gap(panel: Panel, feature: Feature) -> Panel:
    """The panel with a gap of the first ticker, if the feature can be computed on it: some code looks across gaps."""
    columns = {name: getattr(panel, name).copy() for name in panel.columns}
    tradable = panel.tradable.copy()
    for values in columns.values():
        values[GAP, 0] = np.nan
    tradable[GAP, 0] = False
    gapped = dataclasses.replace(panel, tradable=tradable, **columns)
    try:
        compute_one(gapped, feature)
    except FeatureError:
        return panel
    return gapped


def _pipeline(panel: Panel, make: Callable[[], Feature], restart: Callable[[], None] | None) -> Pipeline:
    """Prices and one feature, in float64, without decisions."""
    normaliser = build_market(panel, (RETURN,), (0, len(panel.times) - 1)).normaliser

    def build(prices: Panel) -> MarketTensor:
        feature = make()
        values = torch.from_numpy(compute_one(prices, feature)).unsqueeze(-1)
        market = build_market(prices, (RETURN,), normaliser)
        return dataclasses.replace(
            market, feature_names=(unpinned(feature.name),), features=values, raw_features=values
        )

    return Pipeline(
        name="feature",
        panel=panel,
        build=build,
        rules=ExecutionRules(),
        cash=CASH,
        out_of_sample=len(panel.times) // 2,
        restart=restart,
    )
