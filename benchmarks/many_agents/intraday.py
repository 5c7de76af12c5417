"""Schedules and a trained agent on simulated sessions, as no package with a fitting licence holds intraday bars."""

from __future__ import annotations

from typing import Any

from finrl_pod_app.multi_agent.intraday import SAMPLES, compare, train_execution

from finrl_pod.market.intraday import SCHEDULES, simulated_sessions
from finrl_pod.settings.intraday import IntradayExecutionConfig

TRAIN, TEST, BARS = 1000, 500, 26  # sessions of 15-minute bars


def simulated_study(seed: int, samples: int = SAMPLES) -> dict[str, dict[str, Any]]:
    """Train on simulated sessions and compare on later ones: a result for each schedule."""
    config = IntradayExecutionConfig()
    sessions = simulated_sessions(TRAIN + TEST, BARS, seed)
    agent = train_execution(sessions.part(0, TRAIN), config, samples=samples, seed=seed)
    summaries = compare(sessions.part(TRAIN, TRAIN + TEST), {**SCHEDULES, "ppo": agent}, config)
    return {
        name: {
            "value": s.mean, "low": s.low, "high": s.high, "difference": s.difference,
            "difference_low": s.difference_low, "difference_high": s.difference_high,
            "order_share": config.order_share, "test_sessions": TEST, "samples": samples if name == "ppo" else 0,
        }
        for name, s in summaries.items()
    }  # fmt: skip
