"""Every backtest is a look at its bars, logged before it is made: who has looked often has to see more.

Baselines are not counted. They were settled before any prices were seen, and every verdict is shown beside them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user import UserStrategy

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
    """Log it; returns how many looks there are at these bars by now, also in other data sets that show the same market
    on the same days. The same subject is counted once.

    Raises EnvironmentLacks where the register cannot be used: what cannot be counted must not be looked at.
    """
    first, last = dates(panel, span)
    return (registry or Registry()).look(Look(panel.sha256, subject, first, last, what), panel)


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
    """What names an object that somebody made: the weights of a trained one, the text of a user's file, else its class
    with the class's source and its settings.

    What cannot be told from another by these is a subject of its own each time: it is rather counted twice than not.
    """
    if isinstance(strategy, UserStrategy) and strategy.fingerprint is not None:
        return strategy.fingerprint
    digest = hashlib.sha256(repr(strategy.name).encode())
    try:
        if isinstance(strategy, PolicyStrategy):
            _feed(digest, [__version__, strategy.rules, strategy.rule, strategy.shares])
            _feed(digest, [params for _, params, _ in strategy.families])
        else:
            maker = strategy.inner if isinstance(strategy, UserStrategy) else strategy
            _feed(digest, [inspect.getsource(type(maker)), vars(maker)])
    except (TypeError, OSError):
        digest.update(uuid.uuid4().bytes)
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, value: Any) -> None:
    """A value's kind and contents. Raises TypeError for one whose contents are not known to be all there is."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        digest.update(repr((value.dtype, value.shape)).encode() + np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed(digest, {"": type(value).__qualname__, **vars(value)})
    elif isinstance(value, Mapping):
        _feed(digest, [part for key in sorted(value) for part in (key, value[key])])
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__} {len(value)} ".encode())
        for part in value:
            _feed(digest, part)
    elif value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    else:
        raise TypeError(f"{type(value).__name__} has no known contents")
