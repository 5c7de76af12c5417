"""Benchmarks: speed of environments and learners, and learning on markets with a known optimum.

python -m finrl_pod_app.bench env|ppo|population|learn [--json] [--out FILE]
"""

from finrl_pod_app.bench.command import main

__all__ = ["main"]
