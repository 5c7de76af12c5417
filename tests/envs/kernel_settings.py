"""Hypothesis strategies for the environment settings that both native kernels support."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KERNEL_SETTINGS: dict[str, Any] = {
    "fill": st.sampled_from(["next", "same_close"]),
    "reward": st.sampled_from(["log_return", "change"]),
    "cost_bps": st.sampled_from([0.0, 10.0, 200.0]),
    "half_spread": st.sampled_from(["constant", "from data"]),
    "turbulence_limit": st.sampled_from([0.0, 0.5]),
    "window": st.just(6),
    "envs": st.just(30),
    "group": st.sampled_from([1, 10, 15]),
}
