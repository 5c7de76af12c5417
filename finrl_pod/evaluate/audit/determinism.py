"""Check determinism: features, decisions and environments built twice are equal."""

from __future__ import annotations

import numpy as np

from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, first_difference, record_decisions, rollout

CHECK = "determinism"
SPAN = 60  # bars compared
STEPS = 16


def check_determinism(pipeline: Pipeline) -> list[Finding]:
    """Build markets, decisions and environments twice and require bitwise equality."""
    panels = [pipeline.prepare(pipeline.panel) for _ in range(2)]
    markets = [pipeline.build(panel) for panel in panels]
    found = []
    raw = [market.features.cpu().numpy() for market in markets]
    for i, name in enumerate(markets[0].feature_names):
        if not np.array_equal(raw[0][..., i], raw[1][..., i]):
            t = int((raw[0][..., i] != raw[1][..., i]).any(1).argmax())
            found.append(_failure(pipeline, f"feature {name}", t))
    first = pipeline.out_of_sample
    last = min(first + SPAN, len(pipeline.panel.times) - 1)
    for name, strategy in pipeline.strategies.items():
        runs = [
            record_decisions(strategy, panel, market, first, last, pipeline.rules, pipeline.cash)
            for panel, market in zip(panels, markets, strict=True)
        ]
        for i, (a, b) in enumerate(zip(*runs, strict=True)):
            if (a is None) != (b is None) or (a is not None and b is not None and not np.array_equal(a, b)):
                found.append(_failure(pipeline, f"strategy {name}", first + i))
                break
    if pipeline.make_env is not None:
        span = (max(first, markets[0].first), min(last, markets[0].steps - 1))
        a_run, b_run = (rollout(pipeline.make_env(market, *span), STEPS) for market in markets)
        different = first_difference(a_run, b_run, 0.0)
        if different is not None:
            found.append(_failure(pipeline, f"the environment's {different[0]}", different[1]))
    message = "Two builds from the same seed are identical."
    return found or [Finding(CHECK, "pass", pipeline.name, message)]


def _failure(pipeline: Pipeline, part: str, t: int) -> Finding:
    bar = pipeline.bar(t)
    message = f"{part} differs between two builds from the same seed; the first difference is at {bar}."
    return Finding(CHECK, "fail", part, message, bar)
