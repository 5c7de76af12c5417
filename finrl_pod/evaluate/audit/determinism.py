"""Check determinism: prices, features, decisions and environments computed twice are equal."""

from __future__ import annotations

import numpy as np

from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, first_difference, record_decisions, rollout

CHECK = "determinism"
BARS = 1000  # with them, decisions that differ on 1% of bars are found with a probability of 1 - 2e-9
MEMBER_BARS = 60
STEPS = 16


def check_determinism(pipeline: Pipeline, bars: int = BARS) -> list[Finding]:
    """Build markets, decisions and environments twice and require bitwise equality.

    Features are compared on all bars, decisions of the first strategy on `bars` bars after training, and those of
    further ones (members of an ensemble) on `MEMBER_BARS`.
    """
    panels = [pipeline.prepared(pipeline.panel) for _ in range(2)]
    markets = [pipeline.build(panel) for panel in panels]
    found = []
    for column in (*panels[0].columns, "tradable"):
        one, other = (getattr(panel, column) for panel in panels)
        if not np.array_equal(one, other, equal_nan=column != "tradable"):
            t = int((~((one == other) | (np.isnan(one) & np.isnan(other)))).any(1).argmax())
            found.append(failure(pipeline, f"the preparation of {column}", t))
    raw = [market.features.cpu().numpy() for market in markets]
    for i, name in enumerate(markets[0].feature_names):
        if not np.array_equal(raw[0][..., i], raw[1][..., i]):
            t = int((raw[0][..., i] != raw[1][..., i]).any(1).argmax())
            found.append(failure(pipeline, f"feature {name}", t))
    first = pipeline.out_of_sample
    end = len(pipeline.panel.times) - 1
    for place, (name, strategy) in enumerate(pipeline.strategies.items()):
        last = min(first + (MEMBER_BARS if place else bars), end)
        runs = [
            record_decisions(strategy, panel, market, first, last, pipeline.rules, pipeline.cash)
            for panel, market in zip(panels, markets, strict=True)
        ]
        for i, (a, b) in enumerate(zip(*runs, strict=True)):
            if (a is None) != (b is None) or (a is not None and b is not None and not np.array_equal(a, b)):
                found.append(failure(pipeline, f"strategy {name}", first + i))
                break
    if pipeline.make_env is not None:
        span = (max(first, markets[0].first), min(first + MEMBER_BARS, end, markets[0].steps - 1))
        a_run, b_run = (rollout(pipeline.make_env(market, *span), STEPS) for market in markets)
        different = first_difference(a_run, b_run, 0.0)
        if different is not None:
            found.append(failure(pipeline, f"the environment's {different[0]}", different[1]))
    message = "Two builds from the same seed are identical."
    return found or [Finding(CHECK, "pass", pipeline.name, message)]


def failure(pipeline: Pipeline, part: str, t: int) -> Finding:
    """A failure of a part that differs at bar t although nothing was changed."""
    bar = pipeline.bar(t)
    message = (
        f"{part} is not reproducible: two computations from the same prices and seed differ, first at {bar}. Use a "
        "generator with a fixed seed, and no clock."
    )
    return Finding(CHECK, "fail", part, message, bar)
