"""The algorithms by name: what each is, where it comes from, and the record of its settings.

Nothing here needs torch: the command line lists the algorithms without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from finrl_pod.errors import ConfigError
from finrl_pod.settings.algorithm_configs import (
    A2CConfig,
    AgentConfig,
    AnalyticConfig,
    ClosedFormConfig,
    DDPGConfig,
    DQNConfig,
    PPOConfig,
    REDQConfig,
    SACConfig,
    SHACConfig,
    TD3Config,
)
from finrl_pod.settings.multi_agent import MADDPGConfig
from finrl_pod.user_files import check_name, closest_part, custom_object, unpinned


@dataclass(frozen=True)
class AlgorithmInfo:
    """Summary of one algorithm.

    kind: "solved" computes its weights, "on-policy" learns from its current rollout, "off-policy" from a replay buffer,
    "simulator" from the derivative of the market. actions: "continuous", "discrete" or "both". config_class: class of
    its settings.
    """

    name: str
    summary: str
    source: str
    kind: Literal["solved", "on-policy", "off-policy", "simulator"]
    actions: Literal["continuous", "discrete", "both"]
    config_class: type[AgentConfig]

    @property
    def needs_market(self) -> bool:
        """Whether it works on markets only, and not on other environments."""
        return self.kind in ("solved", "simulator")


ALGORITHMS: Mapping[str, AlgorithmInfo] = {
    info.name: info
    for info in (
        AlgorithmInfo(
            "closed_form",
            "weights of a linear policy, solved from what tilts by single features earn before and after costs",
            "Brandt, Santa-Clara and Valkanov 2009, doi:10.1093/rfs/hhp003",
            "solved",
            "continuous",
            ClosedFormConfig,
        ),
        AlgorithmInfo(
            "ppo",
            "proximal policy optimisation: clipped steps on advantages of whole rollouts",
            "Schulman et al. 2017, arXiv:1707.06347",
            "on-policy",
            "both",
            PPOConfig,
        ),
        AlgorithmInfo(
            "a2c",
            "advantage actor-critic: one step of gradient on each short rollout",
            "Mnih et al. 2016, arXiv:1602.01783",
            "on-policy",
            "both",
            A2CConfig,
        ),
        AlgorithmInfo(
            "ddpg",
            "deep deterministic policy gradient: an actor that maximises its critic",
            "Lillicrap et al. 2016, arXiv:1509.02971",
            "off-policy",
            "continuous",
            DDPGConfig,
        ),
        AlgorithmInfo(
            "td3",
            "twin delayed DDPG: the lower of two critics, smoothed targets, a slower actor",
            "Fujimoto et al. 2018, arXiv:1802.09477",
            "off-policy",
            "continuous",
            TD3Config,
        ),
        AlgorithmInfo(
            "sac",
            "soft actor-critic: reward and entropy, with an automatic temperature",
            "Haarnoja et al. 2018, arXiv:1812.05905",
            "off-policy",
            "continuous",
            SACConfig,
        ),
        AlgorithmInfo(
            "redq",
            "randomised ensembled double Q-learning: many critics, targets from a random subset",
            "Chen et al. 2021, arXiv:2101.05982",
            "off-policy",
            "continuous",
            REDQConfig,
        ),
        AlgorithmInfo(
            "dqn",
            "deep Q-learning with a replay buffer and a target network",
            "Mnih et al. 2015, doi:10.1038/nature14236",
            "off-policy",
            "discrete",
            DQNConfig,
        ),
        AlgorithmInfo(
            "double_dqn",
            "double DQN: the network selects the next action, the target network values it",
            "van Hasselt et al. 2016, arXiv:1509.06461",
            "off-policy",
            "discrete",
            DQNConfig,
        ),
        AlgorithmInfo(
            "dueling_dqn",
            "dueling DQN: one stream for the state value, one for the action advantages",
            "Wang et al. 2016, arXiv:1511.06581",
            "off-policy",
            "discrete",
            DQNConfig,
        ),
        AlgorithmInfo(
            "d3qn",
            "dueling double DQN",
            "Wang et al. 2016, arXiv:1511.06581, with van Hasselt et al. 2016",
            "off-policy",
            "discrete",
            DQNConfig,
        ),
        AlgorithmInfo(
            "analytic",
            "analytic policy gradient: back-propagation through the market over a short horizon",
            "Freeman et al. 2021, arXiv:2106.13281",
            "simulator",
            "continuous",
            AnalyticConfig,
        ),
        AlgorithmInfo(
            "shac",
            "short-horizon actor-critic: the derivative of the market plus a terminal critic",
            "Xu et al. 2022, arXiv:2204.07137",
            "simulator",
            "continuous",
            SHACConfig,
        ),
    )
}


# Of the agents of one market together: `train --many` and `--market` know it, other environments have one agent.
MADDPG = AlgorithmInfo(
    "maddpg",
    "multi-agent DDPG: critics read the state and the actions of all agents",
    "Lowe et al. 2017, arXiv:1706.02275",
    "off-policy",
    "continuous",
    MADDPGConfig,
)


def algorithm_class(name: str) -> Any | None:
    """Class of an algorithm that is not built in: registered, file.py:Class, or package.module:Class.

    None for an unknown name. Raises InputError for a part that cannot be imported, ConfigError for an
    object that is no algorithm.
    """
    if name in _CLASSES:
        return _CLASSES[name]
    custom_class = custom_object(name, f"the algorithm {name}")
    if custom_class is not None:
        _check_class(name, custom_class)
    return custom_class


def _check_class(name: str, custom_class: object) -> None:
    """Raises ConfigError for an object that is no algorithm."""
    if not (isinstance(custom_class, type) and hasattr(custom_class, "iterate") and hasattr(custom_class, "Config")):
        raise ConfigError(
            f"the algorithm {unpinned(name)} must be a class derived from finrl_pod.rl.algorithms.a2c."
            f"LossAlgorithm, as finrl-pod new algorithm writes it, got {custom_class!r}"
        )


def algorithm_info(name: str) -> AlgorithmInfo:
    """Summary of an algorithm by name, also of a custom one.

    Raises ConfigError for an unknown one, else as the class.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if name == MADDPG.name:
        return MADDPG
    custom_class = algorithm_class(name)
    if custom_class is None:
        raise ConfigError(
            f"there is no algorithm {name!r}; {closest_part('algorithms', name, (*ALGORITHMS, *_CLASSES))}"
        )
    summary = (inspect.getdoc(custom_class) or "").partition("\n")[0]
    return AlgorithmInfo(name, summary, "", "on-policy", getattr(custom_class, "ACTIONS", "both"), custom_class.Config)


def register_algorithm(name: str) -> Callable[[type], type]:
    """Decorator that registers a subclass of `LossAlgorithm` for `agent.algorithm = name`.

    Raises ConfigError for the name of a built-in algorithm and an object that is no algorithm, InputError for no name.
    """
    check_name("algorithm", name)
    if name in ALGORITHMS:
        raise ConfigError(f"the algorithm {name!r} is built in; choose another name")

    def add(algorithm: type) -> type:
        _check_class(name, algorithm)
        _CLASSES[name] = algorithm
        return algorithm

    return add


_CLASSES: dict[str, type] = {}
