"""Settings of an agent that change nothing, because of another setting, the environment or the device."""

from __future__ import annotations

from collections.abc import Iterator

from finrl_pod.market.protocols import MarketVecEnv, group_shape
from finrl_pod.native.device import on_device
from finrl_pod.protocols import VecEnv
from finrl_pod.settings.algorithm_configs import (
    ActorCriticConfig,
    AgentConfig,
    AnalyticConfig,
    ClosedFormConfig,
    OnPolicyConfig,
    PPOConfig,
    TD3Config,
    TrainedAgentConfig,
)
from finrl_pod.settings.constraints import describe_settings


def idle_settings(config: AgentConfig, env: VecEnv) -> dict[str, str]:
    """Settings that differ from their defaults and change nothing: name -> reason."""
    settings = describe_settings(type(config))
    reasons = dict([*_of_device(env), *_of_inputs(config, env), *_of_on_policy(config, env), *_of_critics(config)])
    changed = {name for name, entry in settings.items() if getattr(config, name) != entry.default}
    return {name: reason for name, reason in reasons.items() if name in changed}


def _of_device(env: VecEnv) -> Iterator[tuple[str, str]]:
    if not on_device(env.device):
        for name in ("matmul_precision", "activation_dtype"):
            yield name, "it is of GPUs, and this run is on a CPU"


def _of_inputs(config: AgentConfig, env: VecEnv) -> Iterator[tuple[str, str]]:
    if isinstance(config, ClosedFormConfig | AnalyticConfig) and config.policy == "linear":
        yield "hidden", "a linear policy has no hidden layers"
    if isinstance(config, TrainedAgentConfig) and config.encoder == "none" and isinstance(env, MarketVecEnv):
        for name in ("lookback", "encoder_size"):
            yield name, 'agent.encoder is "none"'


def _of_on_policy(config: AgentConfig, env: VecEnv) -> Iterator[tuple[str, str]]:
    if not isinstance(config, OnPolicyConfig):
        return
    if not config.h_term:
        for name in ("h_steps", "h_trajectories", "h_buffer"):
            yield name, "agent.h_term is 0"
    if not config.use_sde:
        yield "sde_sample_freq", "agent.use_sde is false"
    elif config.sde_sample_freq >= config.horizon:
        yield "sde_sample_freq", f"noise is drawn at the start of each rollout of agent.horizon = {config.horizon}"
    if env.action_kind == "discrete":
        yield "log_std_init", "choices have no standard deviation"
    if config.horizon == 1:
        yield "gae_lambda", "agent.horizon is 1"
    if group_shape(env)[-1] == 1:
        yield "group_baseline", "no accounts share their bars here"
    if isinstance(config, PPOConfig) and config.epochs * config.minibatches == 1:
        for name in ("clip_range", "clip_range_schedule", "target_kl"):
            yield name, "one gradient step a rollout changes no probability before it"


def _of_critics(config: AgentConfig) -> Iterator[tuple[str, str]]:
    if isinstance(config, ActorCriticConfig):
        if config.critics == 1:
            yield "critic_rule", "agent.critics is 1"
        if config.critic_rule != "subset":
            yield "critic_subset", 'agent.critic_rule is not "subset"'
    if isinstance(config, TD3Config) and not config.target_noise:
        yield "noise_clip", "agent.target_noise is 0"
