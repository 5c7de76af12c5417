"""The settings of each algorithm. Each has a record of its own, so a setting that it does not have is an unknown key.

Nothing here needs torch: a config file is read without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CriticRule = Literal["min", "mean", "subset"]


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
class OnPolicyConfig(AgentConfig):
    """What algorithms share that learn from the rollout they have just made.

    group_baseline: take from each advantage the mean over the accounts that live through the same days (as many as
    environment.group): the market's noise, which no action caused. scale_rewards: divide rewards by their standard
    deviation in the first rollout. h_term: weight of the H-term (`regularisers.py`), 0 is off, over `h_trajectories`
    trajectories of `h_steps` steps out of a buffer of `h_buffer` good ones. diversity: weight of a bonus for acting
    unlike the next member (`regularisers.py`), 0 is off.

    activation, orthogonal: of a plain network's hidden layers, and whether its weights begin orthogonal or uniform
    within 1 / sqrt(inputs). log_std: where the logarithm of the standard deviation of actions begins. sde: the noise
    depends on what the network sees and lasts for `sde_interval` steps, 0: for a rollout (`state_noise.py`).
    normalise: flat rows and rewards by running statistics (`normalisation.py`). optimiser, optimiser_epsilon: its kind,
    and what it adds to a denominator.
    """

    horizon: int = 32
    group_baseline: bool = True
    scale_rewards: bool = True
    gae_lambda: float = 0.9
    entropy: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    h_term: float = 0.0
    h_steps: int = 8
    h_trajectories: int = 32
    h_buffer: int = 512
    diversity: float = 0.0
    activation: Literal["tanh", "relu"] = "tanh"
    orthogonal: bool = True
    log_std: float = 0.0
    sde: bool = False
    sde_interval: int = 0
    normalise: bool = False
    optimiser: Literal["adam", "rmsprop"] = "adam"
    optimiser_epsilon: float = 1e-8


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation.

    target_kl: a member that moved further than this from the policy that collected the data sits out the rest of the
    iteration. clip_schedule: "linear" lets the clip fall as the learning rate does.
    """

    algorithm: Literal["ppo"] = "ppo"
    epochs: int = 2
    minibatches: int = 8
    clip: float = 0.2
    clip_schedule: Literal["constant", "linear"] = "constant"
    target_kl: float = 0.05


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic: one step of gradient on each short rollout, as a whole."""

    algorithm: Literal["a2c"] = "a2c"
    horizon: int = 8
    gae_lambda: float = 1.0


@dataclass(frozen=True)
class OffPolicyConfig(AgentConfig):
    """What algorithms with a replay share.

    An iteration takes `horizon` steps of every environment and then `updates` gradient steps on `batch` samples each.
    replay: transitions kept for each member. warmup: samples of random actions before the first update.
    target_interval, target_rate: every so many updates (of the actor, for those of a deterministic one) the target
    networks move by this share towards the networks.
    scale_rewards: divide rewards by their standard deviation in the replay at the first update.
    """

    learning_rate: float = 1e-3
    horizon: int = 1
    updates: int = 2
    batch: int = 256
    replay: int = 100_000
    warmup: int = 5_000
    target_interval: int = 1
    scale_rewards: bool = True
    target_rate: float = 0.005
    max_grad_norm: float = 10.0


@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """Deep deterministic policy gradient. exploration: standard deviation of the noise on actions in [-1, 1].

    critics, critic_rule, subset: size of the critic ensemble, and how its target is made: the minimum, the mean, or
    the minimum over `subset` of them drawn anew for every update.
    """

    algorithm: Literal["ddpg"] = "ddpg"
    critics: int = 1
    critic_rule: CriticRule = "min"
    subset: int = 1
    exploration: float = 0.1


@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Twin delayed DDPG. policy_delay: critic updates for each of the actor and the targets. target_noise: standard
    deviation of the noise on the target's action, cut off at noise_clip."""

    algorithm: Literal["td3"] = "td3"
    critics: int = 2
    critic_rule: CriticRule = "min"
    subset: int = 2
    policy_delay: int = 2
    exploration: float = 0.1
    target_noise: float = 0.2
    noise_clip: float = 0.5


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Soft actor-critic. temperature: of the entropy, at the start; with `automatic` it follows the entropy's target
    of `target_entropy` for each number of the action."""

    algorithm: Literal["sac"] = "sac"
    critics: int = 2
    critic_rule: CriticRule = "min"
    subset: int = 2
    automatic: bool = True
    temperature: float = 1.0
    target_entropy: float = -1.0


@dataclass(frozen=True)
class REDQConfig(OffPolicyConfig):
    """Randomised ensembled double Q-learning: soft actor-critic with many critics, many updates a sample, targets from
    the minimum of a random subset, and an actor that follows the mean of all, once every `policy_delay` updates."""

    algorithm: Literal["redq"] = "redq"
    updates: int = 4
    critics: int = 10
    critic_rule: CriticRule = "subset"
    subset: int = 2
    policy_delay: int = 4
    automatic: bool = True
    temperature: float = 1.0
    target_entropy: float = -1.0


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """Deep Q-learning and its kin. epsilon: share of random actions, falling from 1 to this over the first
    `exploration_samples` samples."""

    algorithm: Literal["dqn", "double_dqn", "dueling_dqn", "d3qn"] = "dqn"
    exploration_samples: int = 50_000
    epsilon: float = 0.05


@dataclass(frozen=True)
class SimulatorConfig(AgentConfig):
    """What algorithms share that differentiate the market.

    exploration: standard deviation of the noise on scores. What follows after `horizon` steps has no gradient.
    """

    horizon: int = 8
    learning_rate: float = 1e-2
    exploration: float = 0.3
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class AnalyticConfig(SimulatorConfig):
    """Analytic policy gradient: up the derivative of the rewards of a short horizon."""

    algorithm: Literal["analytic"] = "analytic"
    discount: float = 1.0


@dataclass(frozen=True)
class SHACConfig(SimulatorConfig):
    """Short-horizon actor-critic: the same, with a critic that says what the last state is worth.

    epochs, minibatches: of the critic on each path. gae_lambda: of its TD(lambda) returns. target_rate: share of the
    way that the target critic moves towards the critic in every iteration.
    """

    algorithm: Literal["shac"] = "shac"
    epochs: int = 2
    minibatches: int = 4
    gae_lambda: float = 0.95
    target_rate: float = 0.5
