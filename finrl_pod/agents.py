"""The algorithms by name: what each is, where it comes from, and the record of its settings.

Nothing here needs torch: the command line lists the algorithms, and a config file is read, without it. Each algorithm
has a record of its own, so a setting that an algorithm does not have is an unknown key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AgentConfig:
    """What every algorithm has."""

    algorithm: str = "ppo"
    policy: Literal["equivariant", "mlp"] = "equivariant"
    hidden: tuple[int, ...] = (32, 32)
    learning_rate_schedule: Literal["constant", "linear"] = "linear"
    learning_rate: float = 3e-3
    discount: float = 0.95


@dataclass(frozen=True)
class PPOConfig(AgentConfig):
    """Proximal policy optimisation.

    group_baseline: take from each advantage the mean over the accounts that live through the same days (as many as
    environment.group): the market's noise, which no action caused. target_kl: a member that moved further than this
    from the policy that collected the data sits out the rest of the iteration.
    """

    algorithm: Literal["ppo"] = "ppo"
    horizon: int = 32
    epochs: int = 2
    minibatches: int = 8
    group_baseline: bool = True
    gae_lambda: float = 0.9
    clip: float = 0.2
    entropy: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float = 0.05


@dataclass(frozen=True)
class Facts:
    """What a list of algorithms says of one.

    kind: "on-policy" learns from what it just did, "off-policy" from a replay. actions: "continuous" or "discrete".
    """

    name: str
    summary: str
    source: str
    kind: Literal["on-policy", "off-policy", "simulator", "add-on"]
    actions: Literal["continuous", "discrete"]
    record: type[AgentConfig]


ALGORITHMS: Mapping[str, Facts] = {
    facts.name: facts
    for facts in (
        Facts(
            "ppo",
            "proximal policy optimisation: clipped steps on advantages of whole rollouts",
            "Schulman et al. 2017, arXiv:1707.06347",
            "on-policy",
            "continuous",
            PPOConfig,
        ),
    )
}
