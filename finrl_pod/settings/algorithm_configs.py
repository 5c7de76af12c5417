"""Settings of each algorithm, one record per algorithm; a setting that the algorithm does not have is an unknown key.

Importable without torch, so that config files can be read without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

CriticRule = Literal["min", "mean", "subset"]

# Former names of agent settings and hyperparameters -> their names now; the loader refuses the former ones.
RENAMED_KEYS: Mapping[str, str] = {
    "replay": "buffer_size",
    "batch": "batch_size",
    "updates": "gradient_steps",
    "warmup": "learning_starts",
    "target_rate": "tau",
    "entropy": "entropy_coefficient",
    "value_weight": "value_coefficient",
    "automatic": "auto_entropy",
    "discount": "gamma",
    "clip": "clip_range",
    "clip_schedule": "clip_range_schedule",
    "subset": "critic_subset",
    "exploration": "exploration_noise",
    "epsilon": "final_epsilon",
    "log_std": "log_std_init",
    "orthogonal": "orthogonal_init",
    "sde": "use_sde",
    "sde_interval": "sde_sample_freq",
}


@dataclass(frozen=True)
class AgentConfig:
    """Settings shared by all algorithms. gamma: discount factor. hidden: units of each hidden layer."""

    algorithm: str = "ppo"
    policy: Literal["equivariant", "mlp"] = "equivariant"
    hidden: tuple[int, ...] = (32, 32)
    learning_rate_schedule: Literal["constant", "linear"] = "linear"
    learning_rate: float = 3e-3
    gamma: float = 0.95


@dataclass(frozen=True)
class OnPolicyConfig(AgentConfig):
    """Settings shared by the on-policy algorithms, which learn from the rollout just collected.

    gae_lambda: lambda of generalised advantage estimation. group_baseline: subtract from each advantage the mean over
    the accounts that share a window of time (`environment.group`), which removes market noise that no action caused.
    scale_rewards: divide rewards by their standard deviation in the first rollout.
    h_term: weight of the H-term (`regularisers.py`), 0: off; it uses `h_trajectories` trajectories of `h_steps` steps
    from a buffer of the `h_buffer` best. diversity: weight of the KL diversity bonus (`regularisers.py`), 0: off.

    activation, orthogonal_init: of MLP hidden layers; weights start orthogonal, else uniform within 1 / sqrt(inputs).
    log_std_init: initial logarithm of the standard deviation of actions. use_sde: state-dependent exploration (gSDE,
    `state_noise.py`), resampled every `sde_sample_freq` steps, 0: once per rollout.
    normalise: running mean and variance of observations and rewards (`normalisation.py`).
    optimiser, optimiser_epsilon: which optimiser, and the constant added to its denominator.
    """

    horizon: int = 32
    group_baseline: bool = True
    scale_rewards: bool = True
    gae_lambda: float = 0.9
    entropy_coefficient: float = 0.0
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    h_term: float = 0.0
    h_steps: int = 8
    h_trajectories: int = 32
    h_buffer: int = 512
    diversity: float = 0.0
    activation: Literal["tanh", "relu"] = "tanh"
    orthogonal_init: bool = True
    log_std_init: float = 0.0
    use_sde: bool = False
    sde_sample_freq: int = 0
    normalise: bool = False
    optimiser: Literal["adam", "rmsprop"] = "adam"
    optimiser_epsilon: float = 1e-8


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation.

    clip_range: limit on the change of an action's probability ratio. clip_range_schedule: "linear" decays it with the
    learning rate. target_kl: a member whose KL divergence from the collecting policy exceeds this skips the remaining
    minibatches of the iteration.
    """

    algorithm: Literal["ppo"] = "ppo"
    epochs: int = 2
    minibatches: int = 8
    clip_range: float = 0.2
    clip_range_schedule: Literal["constant", "linear"] = "constant"
    target_kl: float = 0.05


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic: one gradient step on each short rollout."""

    algorithm: Literal["a2c"] = "a2c"
    horizon: int = 8
    gae_lambda: float = 1.0


@dataclass(frozen=True)
class OffPolicyConfig(AgentConfig):
    """Settings shared by the algorithms with a replay buffer.

    An iteration takes `horizon` steps in every environment, then `gradient_steps` gradient steps on `batch_size`
    transitions each. buffer_size: transitions kept for each member. learning_starts: transitions collected with random
    actions before the first gradient step. target_interval, tau: every `target_interval` updates (of the actor, for
    deterministic policies) target networks move by the share tau towards the networks (Polyak averaging).
    scale_rewards: divide rewards by their standard deviation in the buffer at the first update.
    """

    learning_rate: float = 1e-3
    horizon: int = 1
    gradient_steps: int = 2
    batch_size: int = 256
    buffer_size: int = 100_000
    learning_starts: int = 5_000
    target_interval: int = 1
    scale_rewards: bool = True
    tau: float = 0.005
    max_grad_norm: float = 10.0


@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """Deep deterministic policy gradient.

    exploration_noise: standard deviation of the noise on actions in [-1, 1].
    critics, critic_rule, critic_subset: size of the critic ensemble, and how its target is formed: the minimum, the
    mean, or the minimum over `critic_subset` critics resampled at every update.
    """

    algorithm: Literal["ddpg"] = "ddpg"
    critics: int = 1
    critic_rule: CriticRule = "min"
    critic_subset: int = 1
    exploration_noise: float = 0.1


@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Twin delayed DDPG.

    policy_delay: critic updates per update of the actor and the target networks.
    target_noise, noise_clip: standard deviation of the target policy smoothing noise, and its limit.
    """

    algorithm: Literal["td3"] = "td3"
    critics: int = 2
    critic_rule: CriticRule = "min"
    critic_subset: int = 2
    policy_delay: int = 2
    exploration_noise: float = 0.1
    target_noise: float = 0.2
    noise_clip: float = 0.5


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Soft actor-critic.

    temperature: initial weight of the entropy (alpha). auto_entropy: learn it, so that the entropy meets
    `target_entropy` per action dimension.
    """

    algorithm: Literal["sac"] = "sac"
    critics: int = 2
    critic_rule: CriticRule = "min"
    critic_subset: int = 2
    auto_entropy: bool = True
    temperature: float = 1.0
    target_entropy: float = -1.0


@dataclass(frozen=True)
class REDQConfig(OffPolicyConfig):
    """Randomised ensembled double Q-learning: SAC with many critics and several gradient steps per sample.

    Targets are the minimum over a random subset of the critics; the actor maximises the mean of all critics, once
    every `policy_delay` updates.
    """

    algorithm: Literal["redq"] = "redq"
    gradient_steps: int = 4
    critics: int = 10
    critic_rule: CriticRule = "subset"
    critic_subset: int = 2
    policy_delay: int = 4
    auto_entropy: bool = True
    temperature: float = 1.0
    target_entropy: float = -1.0


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """Deep Q-learning and its variants.

    The share of random actions falls linearly from 1 to final_epsilon over the first `exploration_samples` samples.
    """

    algorithm: Literal["dqn", "double_dqn", "dueling_dqn", "d3qn"] = "dqn"
    exploration_samples: int = 50_000
    final_epsilon: float = 0.05


@dataclass(frozen=True)
class SimulatorConfig(AgentConfig):
    """Settings shared by the algorithms that differentiate through the market.

    horizon: steps per iteration; gradients stop there. exploration_noise: standard deviation of the noise on scores.
    """

    horizon: int = 8
    learning_rate: float = 1e-2
    exploration_noise: float = 0.3
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class AnalyticConfig(SimulatorConfig):
    """Analytic policy gradient: ascends the derivative of the rewards over a short horizon."""

    algorithm: Literal["analytic"] = "analytic"
    gamma: float = 1.0


@dataclass(frozen=True)
class SHACConfig(SimulatorConfig):
    """Short-horizon actor-critic: the analytic gradient plus a critic that values the state at the horizon.

    epochs, minibatches: of the critic on each trajectory. gae_lambda: of its TD(lambda) returns. tau: share by which
    the target critic moves towards the critic in every iteration.
    """

    algorithm: Literal["shac"] = "shac"
    epochs: int = 2
    minibatches: int = 4
    gae_lambda: float = 0.95
    tau: float = 0.5
