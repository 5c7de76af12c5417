"""Settings of each algorithm, one record per algorithm; a setting that the algorithm does not have is an unknown key.

Importable without torch, so that config files can be read without it.
"""

# ruff: noqa: RUF009 (setting() and section() return dataclass fields)

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finrl_pod.settings.constraints import (
    FINITE,
    FRACTION,
    POSITIVE,
    Constraint,
    above_and_at_most,
    at_least,
    between,
    setting,
)

CriticRule = Literal["min", "mean", "subset"]

MAX_GRADIENT_STEPS = 1_000_000  # per iteration; it cannot be interrupted
MAX_LOG_STD = 20.0
MAX_LOOKBACK = 256  # bars
LAYER_SIZES = Constraint("one or more sizes, each 1 or more", lambda sizes: len(sizes) >= 1 and min(sizes) >= 1)


@dataclass(frozen=True)
class AgentConfig:
    """Settings shared by all algorithms."""

    algorithm: str = setting(
        "ppo",
        "how agents learn: closed_form (solved, not trained), analytic (gradients through the market), ppo, ... as "
        "listed by `finrl-pod algorithms`, or file.py:Class",
    )
    policy: str = setting(
        "equivariant",
        "equivariant: one network for every asset; linear: scores linear in the features of an asset; mlp: an "
        "MLP of the flat observation; or a custom file.py:Class",
    )
    hidden: tuple[int, ...] = setting((32, 32), "units of each hidden layer", LAYER_SIZES)


@dataclass(frozen=True)
class ClosedFormConfig(AgentConfig):
    """Closed form: the weights of a linear policy are solved from what its features earn, without training."""

    algorithm: Literal["closed_form"] = "closed_form"
    policy: str = "linear"


@dataclass(frozen=True)
class TrainedAgentConfig(AgentConfig):
    """Settings shared by the algorithms that learn by gradient steps."""

    start: Literal["new", "closed_form"] = setting(
        "new",
        "weights before training: new (random or zero), or closed_form: solved; weight_decay then pulls towards them, "
        "and five folds of training choose the number of updates",
    )
    encoder: Literal["none", "gru"] = setting(
        "none", "gru: a recurrent code of the last `lookback` bars of each asset stands beside its features"
    )
    lookback: int = setting(32, "bars that the encoder reads, the decision bar included", between(2, MAX_LOOKBACK))
    encoder_size: int = setting(16, "numbers in the code of an asset", at_least(1))
    weight_decay: float = setting(
        0.0,
        "share of each weight, times the learning rate, removed at a gradient step (AdamW); with a solved "
        "start, the same share of its distance from there",
        at_least(0),
    )
    learning_rate_schedule: Literal["constant", "linear"] = setting(
        "linear", "constant, or linear decay to zero over the training budget"
    )
    learning_rate: float = setting(3e-3, "step size of the optimiser", above_and_at_most(0, 1))
    gamma: float = setting(0.95, "discount factor of rewards", FRACTION)
    matmul_precision: Literal["float32", "tf32"] = setting(
        "float32", "of matrix products on NVIDIA GPUs; tf32 keeps ten bits of the mantissa and is several times faster"
    )


@dataclass(frozen=True)
class OnPolicyConfig(TrainedAgentConfig):
    """Settings shared by the on-policy algorithms: they learn from the rollout just collected."""

    horizon: int = setting(32, "steps of each environment per iteration", at_least(1))
    group_baseline: bool = setting(
        True, "subtract from each advantage the mean of its group: removes market noise that no action caused"
    )
    scale_rewards: bool = setting(True, "divide rewards by their standard deviation in the first samples")
    gae_lambda: float = setting(0.9, "lambda of advantage estimation; 0: one-step, 1: full returns", FRACTION)
    entropy_coefficient: float = setting(0.0, "weight of the entropy bonus", FINITE)
    value_coefficient: float = setting(0.5, "weight of the value loss", at_least(0))
    max_grad_norm: float = setting(0.5, "gradient norm limit per member", POSITIVE)
    h_term: float = setting(0.0, "weight of the H-term: it keeps good trajectories likely; 0: off", at_least(0))
    h_steps: int = setting(8, "steps per H-term trajectory", at_least(1))
    h_trajectories: int = setting(32, "H-term trajectories per rollout and per gradient step", at_least(1))
    h_buffer: int = setting(512, "best trajectories kept for the H-term", at_least(1))
    activation: Literal["tanh", "relu"] = setting("tanh", "activation of MLP hidden layers")
    orthogonal_init: bool = setting(True, "orthogonal initial weights of MLPs; else uniform")
    log_std_init: float = setting(
        0.0, "initial logarithm of the standard deviation of actions", between(-MAX_LOG_STD, MAX_LOG_STD)
    )
    use_sde: bool = setting(False, "state-dependent exploration (gSDE), for MLPs")
    sde_sample_freq: int = setting(0, "steps between two samples of gSDE noise; 0: once per rollout", at_least(0))
    normalise: bool = setting(
        False, "normalise observations and rewards by running statistics; for Gymnasium environments"
    )
    optimiser: Literal["adam", "rmsprop"] = setting("adam", "gradient descent method")
    optimiser_epsilon: float = setting(1e-8, "constant added to the denominator of the optimiser", POSITIVE)


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation."""

    algorithm: Literal["ppo"] = "ppo"
    epochs: int = setting(2, "passes over a rollout", at_least(1))
    minibatches: int = setting(8, "minibatches per pass", at_least(1))
    clip_range: float = setting(0.2, "limit on the change of the probability ratio of an action", POSITIVE)
    clip_range_schedule: Literal["constant", "linear"] = setting(
        "constant", "constant, or linear decay with the learning rate"
    )
    target_kl: float = setting(
        0.05, "a member beyond this KL divergence skips the remaining minibatches of an iteration", POSITIVE
    )
    activation_dtype: Literal["float32", "bfloat16"] = setting(
        "float32",
        "of activations and stored accounts on GPUs; weights, log-probabilities, advantages and moments stay float32",
    )


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic: one gradient step on each short rollout."""

    algorithm: Literal["a2c"] = "a2c"
    horizon: int = 8
    gae_lambda: float = 1.0


@dataclass(frozen=True)
class OffPolicyConfig(TrainedAgentConfig):
    """Settings shared by the algorithms with a replay buffer."""

    learning_rate: float = 1e-3
    horizon: int = setting(1, "steps of each environment per iteration", at_least(1))
    gradient_steps: int = setting(
        2,
        "gradient steps per iteration of horizon x envs samples of a member; their ratio is the update-to-data ratio",
        between(1, MAX_GRADIENT_STEPS),
    )
    batch_size: int = setting(256, "transitions per gradient step", at_least(1))
    buffer_size: int = setting(100_000, "transitions kept in the replay buffer of each member", at_least(1))
    learning_starts: int = setting(5_000, "samples of random actions before the first gradient step", at_least(0))
    target_interval: int = setting(1, "gradient steps between two updates of the target networks", at_least(1))
    scale_rewards: bool = setting(True, "divide rewards by their standard deviation in the first samples")
    tau: float = setting(0.005, "share by which target networks move to the networks (Polyak)", above_and_at_most(0, 1))
    max_grad_norm: float = setting(10.0, "gradient norm limit per member", POSITIVE)


@dataclass(frozen=True)
class ActorCriticConfig(OffPolicyConfig):
    """Settings shared by the off-policy algorithms with an actor and an ensemble of critics."""

    critics: int = setting(2, "critics per member", at_least(1))
    critic_rule: CriticRule = setting(
        "min", "target value: minimum or mean of the critics, or minimum of a random subset"
    )
    critic_subset: int = setting(2, "critics in the random subset")


@dataclass(frozen=True)
class DDPGConfig(ActorCriticConfig):
    """Deep deterministic policy gradient."""

    algorithm: Literal["ddpg"] = "ddpg"
    critics: int = 1
    exploration_noise: float = setting(0.1, "standard deviation of the noise on actions in [-1, 1]", at_least(0))


@dataclass(frozen=True)
class TD3Config(ActorCriticConfig):
    """Twin delayed DDPG."""

    algorithm: Literal["td3"] = "td3"
    policy_delay: int = setting(2, "critic updates per update of the actor and the target networks", at_least(1))
    exploration_noise: float = setting(0.1, "standard deviation of the noise on actions in [-1, 1]", at_least(0))
    target_noise: float = setting(0.2, "standard deviation of the target policy smoothing noise", at_least(0))
    noise_clip: float = setting(0.5, "limit on the target policy smoothing noise", at_least(0))


@dataclass(frozen=True)
class SACConfig(ActorCriticConfig):
    """Soft actor-critic."""

    algorithm: Literal["sac"] = "sac"
    temperature: float = setting(1.0, "initial weight of the entropy (alpha)", POSITIVE)


@dataclass(frozen=True)
class REDQConfig(ActorCriticConfig):
    """Randomised ensembled double Q-learning: SAC with many critics and several gradient steps per sample.

    Targets are the minimum over a random subset of the critics; the actor maximises the mean of all critics.

    The paper takes 20 gradient steps per sample of one environment, of batches of 256. `finrl-pod train --env` does the
    same. On markets the default is 20 gradient steps per step of all environments of a member: with the default 256
    environments 0.08 per sample, so that a sample is drawn 20 times on average and not 5,120 times. 20 per sample would
    be 5,120 gradient steps per market step.
    """

    algorithm: Literal["redq"] = "redq"
    gradient_steps: int = 20
    critics: int = 10
    critic_rule: CriticRule = "subset"
    policy_delay: int = setting(20, "critic updates per update of the actor", at_least(1))
    temperature: float = setting(1.0, "initial weight of the entropy (alpha)", POSITIVE)


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """Deep Q-learning and its variants, with epsilon-greedy exploration."""

    algorithm: Literal["dqn", "double_dqn", "dueling_dqn", "d3qn"] = "dqn"
    exploration_samples: int = setting(50_000, "samples over which epsilon falls linearly from 1 to final_epsilon")
    final_epsilon: float = setting(0.05, "share of random actions after exploration_samples", FRACTION)


@dataclass(frozen=True)
class DifferentiableConfig(TrainedAgentConfig):
    """Settings shared by the algorithms that differentiate through the market."""

    horizon: int = setting(8, "steps per iteration; gradients stop there", at_least(1))
    learning_rate: float = 1e-2
    exploration_noise: float = setting(0.3, "standard deviation of the noise on scores", at_least(0))
    max_grad_norm: float = setting(1.0, "gradient norm limit per member", POSITIVE)


@dataclass(frozen=True)
class AnalyticConfig(DifferentiableConfig):
    """Analytic policy gradient: ascends the derivative of the rewards over a short horizon."""

    algorithm: Literal["analytic"] = "analytic"
    gamma: float = 1.0


@dataclass(frozen=True)
class SHACConfig(DifferentiableConfig):
    """Short-horizon actor-critic: the analytic gradient plus a critic that values the state at the horizon."""

    algorithm: Literal["shac"] = "shac"
    epochs: int = setting(2, "passes of the critic over each trajectory", at_least(1))
    minibatches: int = setting(4, "minibatches of the critic per pass", at_least(1))
    gae_lambda: float = setting(0.95, "lambda of the TD(lambda) returns of the critic", FRACTION)
    tau: float = setting(0.5, "share by which the target critic moves per iteration (Polyak)", above_and_at_most(0, 1))
