"""Dueling DQN, Wang et al. 2016: the value of the state, and what each choice adds to the mean choice."""

from __future__ import annotations

from finrl_pod.rl.dqn import DQN


class DuelingDQN(DQN):
    """DQN with a dueling head (`finrl_pod.rl.q_networks.duel`)."""

    DUELING = True
