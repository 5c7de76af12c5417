"""Memory and time of a tournament, estimated before anything is allocated.

Measured runs took between half of the memory and all of it, and the time within a factor of three.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from finrl_pod.data.store import Manifest
from finrl_pod.errors import ConfigError
from finrl_pod.market.rules import rules_of
from finrl_pod.memory import available_bytes
from finrl_pod.settings.algorithm_configs import AgentConfig, DifferentiableConfig, OffPolicyConfig, OnPolicyConfig
from finrl_pod.settings.algorithm_registry import algorithm_info
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import RunConfig, validate_tournament
from finrl_pod.tables import mapped_bytes

PROGRAM = 750_000_000  # libraries in memory, and what evaluating a champion takes
PRICE_COPIES = 3  # of the panel while it is read, checked and converted
BYTES_OF_MASKS = 8  # of a cell of [T, N] in a market
BYTES_OF_PRICES = 56  # of a cell of [T, N] in a market: prices, fills, base weights, liquidity, in float64
GRAPH_TENSORS = 24  # [P, E, N] float32 that a step through the market keeps for its gradient
STEP_TENSORS = 12  # [P, E, N] that a step of environments holds
ROLLOUT_COPIES = 2  # the rollout, and its items in the order of minibatches
PARAMETER_COPIES = 5  # weights, gradient, two moments, a copy to save
SAMPLES_PER_SECOND = {"on-policy": 20_000.0, "off-policy": 1_500.0, "simulator": 10_000.0}  # 20 assets, two cores
LINEAR_SAMPLES_PER_SECOND = 200_000.0  # of a linear policy, unless its algorithm is off-policy
CALL_SECONDS = 2.5e-3  # of an iteration on a policy's own samples, or of a gradient step, whatever its size
WEIGHT_SECONDS = 2.7e-11  # of a gradient step off-policy, per transition and parameter
EVALUATION_SECONDS = 2e-5  # of the audit, the baselines and the report, per bar and asset
FLOAT = 4
GB = 1e9


@dataclass(frozen=True)
class Estimate:
    """Memory and time of a run.

    parts: bytes of memory by name. mapped_bytes: size of tables in files. samples: environment steps of all pods.
    seconds: expected duration.
    """

    parts: Mapping[str, int]
    mapped_bytes: int
    samples: int
    seconds: float

    @property
    def memory_bytes(self) -> int:
        return sum(self.parts.values())


def check_ranges(config: RunConfig) -> None:
    """Raise ConfigError for a setting out of its range, or in conflict with another one, without reading prices."""
    validate_tournament(config.tournament, cohorts=1 + len(config.cohorts))
    rules_of(config.environment)
    for name in ("mandate", "gate"):
        check_settings(f"{name}.", getattr(config, name))
    for agent in (config.agent, *config.cohorts):
        check_settings("agent.", agent)


def estimate_run(config: RunConfig, panel: Manifest, shards: int = 1) -> Estimate:
    """Memory and time of a tournament on a panel with its pods on `shards` processes of this machine."""
    assets = len(config.data.symbols) or len(panel.symbols)
    features = len(config.features.names)
    cells = panel.bars * assets
    limit = mapped_bytes()
    tables = {  # of a market: bytes of all, and of one
        "prices": (cells * BYTES_OF_PRICES, cells * 8),
        "features": (cells * 2 * FLOAT * features, cells * FLOAT * features),
    }
    mapped_size = sum(total for total, largest_table in tables.values() if largest_table > limit)
    in_memory = cells * BYTES_OF_MASKS + sum(total for total, _ in tables.values()) - mapped_size
    agents = (config.agent, *config.cohorts)
    pods: Counter[AgentConfig] = Counter()
    for cohort, agent in enumerate(agents):
        pods[agent] += len(range(cohort, config.tournament.pods, len(agents)))
    together = config.tournament.batch_pods
    batches = [(agent, min(count, together) if together else count) for agent, count in pods.items()]
    batch_bytes = [_training_bytes(config, agent, count, assets, features) for agent, count in batches]
    largest_agent = max(_parameters(agent, assets, features) for agent in pods)
    generations = config.tournament.generations
    samples = config.tournament.pods * generations * config.tournament.samples_per_generation
    parts = {
        "program": PROGRAM * shards,
        "prices": PRICE_COPIES * cells * 8 * max(len(panel.columns), 1),
        "market": in_memory * shards,
        "environments and learners": sum(batch_bytes) if shards == 1 else max(batch_bytes) * shards,
        "scoring": max((count for _, count in batches), default=1) * cells * FLOAT,
        "snapshots": (config.tournament.pods + config.tournament.leaderboard) * largest_agent * 3 * FLOAT,
    }
    seconds = 5.0 + _training_seconds(config, pods, assets, features) + cells * EVALUATION_SECONDS
    return Estimate(parts, mapped_size * shards, samples, seconds)


def check_memory(config: RunConfig, panel: Manifest, device: torch.device, shards: int = 1) -> Estimate:
    """The estimate of a tournament. Raises ConfigError if it exceeds the memory that is free."""
    estimate = estimate_run(config, panel, shards)
    free_bytes = available_bytes(torch.device("cpu"))
    needed_bytes = estimate.memory_bytes
    if device.type == "cuda":
        needed_bytes -= estimate.parts["environments and learners"]  # on the GPU
    if needed_bytes > free_bytes:
        largest = max(estimate.parts, key=lambda name: estimate.parts[name])
        advice = "choose fewer symbols with data.symbols or fewer features.names"
        if largest in ("environments and learners", "snapshots", "scoring"):
            pods = f"tournament.pods = {config.tournament.pods:,}, tournament.batch_pods"
            advice = f"lower {pods} or environment.envs = {config.environment.envs:,}"
        raise ConfigError(
            f"the run needs about {needed_bytes / GB:,.1f} GB of memory and {free_bytes / GB:,.1f} GB are free; most "
            f"of it is for {largest}: {advice}"
        )
    return estimate


def _training_bytes(config: RunConfig, agent: AgentConfig, pods: int, assets: int, features: int) -> int:
    """Environments, rollouts or replay buffers, and parameters of one batch of pods."""
    accounts = pods * config.environment.envs
    step_bytes = accounts * assets * FLOAT * STEP_TENSORS
    row_bytes = (3 + 2 * assets) * FLOAT  # account, action, reward and masks of a sample
    parameter_bytes = pods * _parameters(agent, assets, features) * FLOAT * PARAMETER_COPIES
    if isinstance(agent, OffPolicyConfig):
        width = max(agent.hidden) * (assets if agent.policy == "equivariant" else 1)
        replay_bytes = pods * agent.buffer_size * 2 * row_bytes
        return step_bytes + replay_bytes + parameter_bytes + pods * agent.batch_size * width * FLOAT * 4
    step_bytes += parameter_bytes
    if isinstance(agent, DifferentiableConfig):
        step_bytes += accounts * agent.horizon * assets * FLOAT * GRAPH_TENSORS
    elif isinstance(agent, OnPolicyConfig):
        step_bytes += accounts * agent.horizon * row_bytes * ROLLOUT_COPIES
    return step_bytes


def _parameters(agent: AgentConfig, assets: int, features: int) -> int:
    """Numbers of a policy with its critic, roughly."""
    if agent.policy == "linear":
        return 4 * features + 16
    inputs = features if agent.policy == "equivariant" else 1 + assets * (1 + features)
    sizes = (inputs, *agent.hidden)
    layers = sum((a + 1) * b for a, b in zip(sizes, agent.hidden, strict=False))
    return 3 * (layers + 3 * max(agent.hidden) ** 2 + assets * max(agent.hidden))


def _training_seconds(config: RunConfig, pods: Mapping[AgentConfig, int], assets: int, features: int) -> float:
    """Time of the samples, and of the calls that they take: few environments make many short ones."""
    tournament = config.tournament
    samples = tournament.generations * tournament.samples_per_generation
    size = 20 / max(assets, 1)
    seconds = 0.0
    for agent, count in pods.items():
        kind = algorithm_info(agent.algorithm).kind
        if kind == "solved" or (agent.policy == "linear" and kind != "off-policy"):
            rate = LINEAR_SAMPLES_PER_SECOND * min(size, 1.5)
        else:
            rate = SAMPLES_PER_SECOND[kind] * min(size, 4.0)
        seconds += samples * count / rate
        if not isinstance(agent, OnPolicyConfig | OffPolicyConfig | DifferentiableConfig):
            continue
        batch = min(tournament.batch_pods or count, count)
        iterations = math.ceil(count / max(batch, 1)) * samples / (config.environment.envs * agent.horizon)
        if isinstance(agent, OffPolicyConfig):
            step_seconds = batch * agent.batch_size * _parameters(agent, assets, features) * WEIGHT_SECONDS
            seconds += iterations * agent.gradient_steps * (CALL_SECONDS + step_seconds)
        else:
            seconds += iterations * CALL_SECONDS
    return min(seconds, tournament.seconds or seconds)
