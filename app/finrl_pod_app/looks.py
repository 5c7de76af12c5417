"""Every backtest is a look at its bars, logged before it is made: who has looked often has to see more.

Baselines are not counted. They were settled before any prices were seen, and every verdict is shown beside them.
"""

from __future__ import annotations

import hashlib

import numpy as np

from finrl_pod import __version__
from finrl_pod.config import RunConfig
from finrl_pod.data.splits import Span
from finrl_pod.evaluate.registry import Look, Registry
from finrl_pod.pod.champion import ChampionMembers
from finrl_pod.pod.run_directory import RunDirectory
from finrl_pod.protocols import Strategy
from finrl_pod.types import Panel
from finrl_pod_app.trial_log import dates


def log_look(panel: Panel, span: Span, subject: str, what: str, registry: Registry | None = None) -> int:
    """Log it; returns how many looks there are at these bars by now. The same subject is counted once.

    Raises EnvironmentLacks where the register cannot be used: what cannot be counted must not be looked at.
    """
    first, last = dates(panel, span)
    return (registry or Registry()).look(Look(panel.sha256, subject, first, last, what))


def champion_subject(config: RunConfig, run: RunDirectory, members: ChampionMembers) -> str:
    """What names a champion: its config, its version, and its very weights."""
    digest = hashlib.sha256(repr((config.sha256, __version__, members.shares)).encode())
    for agent in members.ids:
        weights = run.snapshot(agent).weights
        for name in sorted(weights):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(weights[name].numpy()).tobytes())
    return digest.hexdigest()


def object_subject(strategy: Strategy) -> str:
    """What names an object that somebody made: its class, its name, and the weights of a trained one."""
    kind = type(strategy)
    digest = hashlib.sha256(repr((kind.__module__, kind.__qualname__, strategy.name)).encode())
    for _, params, _ in getattr(strategy, "families", ()):
        for name in sorted(params):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(params[name].detach().cpu().numpy()).tobytes())
    return digest.hexdigest()
