"""Benchmarks: how fast environments and learners are, and whether agents learn where the best answer is known.

python -m finrl_pod_app.bench env|ppo|population|learn [--json] [--out FILE]
"""

from finrl_pod_app.bench.command import main

__all__ = ["main"]
