"""Training the agents of a market by one of the multi-agent algorithms.

- ippo: independent PPO; the critic of each agent reads its own observation.
- mappo: PPO with a central critic on the state of the market (Yu et al. 2022).
- maddpg: deterministic actors with central critics on the state and all actions (Lowe et al. 2017).
- league: independent PPO against past champions of all seats, fictitious play (Heinrich et al. 2015) with priorities.
  Champions are copies of the learners of all seats, taken at the end of every generation. One is drawn for each
  opponent at the start of an episode, those against which the learner earns least more often (Vinyals et al. 2019).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.protocols import MultiAgentVecEnv, ResumableMultiAgentVecEnv
from finrl_pod.random import generator
from finrl_pod.rl.acting import MeanActor
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.multi_agent.views import AgentsView, view_agents
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AgentConfig, PPOConfig
from finrl_pod.settings.multi_agent import MADDPGConfig
from finrl_pod.types import EnvStep, JointObservation, Tensor

UNIFORM_SHARE = 0.5  # of opponents drawn without regard to how hard they are
GENERATIONS = 8
RETURN_MEMORY = 0.99  # weight of the past in the mean return against a champion, per finished batch of episodes


class LeagueView:
    """A VecEnv of M members, one for each seat: the others of its markets act by champions of the league.

    champions: weights of the learners of all M seats, name -> [M, ...], newest last; without any the others take action
    0. returns: [M, K], mean reward of each seat in episodes against each champion.
    """

    action_kind = "direct"
    actions = 0

    def __init__(self, market: MultiAgentVecEnv, seed: int) -> None:
        """market: with one member for each agent. Raises ConfigError otherwise."""
        if market.members != market.agents:
            raise ConfigError(
                f"a league needs a market with a member for each of its {market.agents} agents, got {market.members}"
            )
        self.market = market
        self.members = market.agents
        self.envs = market.envs
        self.member_ids = market.member_ids
        self.device = market.device
        self.observation_size = market.observation_size
        self.action_size = market.action_size
        self.champions: list[Params] = []
        self.returns = torch.zeros(self.members, 0, device=self.device)
        self._actor: MeanActor | None = None
        self._draws = generator(seed, 0, "league", self.device)
        m = market.agents
        self._seats = torch.arange(m, device=self.device)
        self._opponent = torch.zeros(m, self.envs, m, dtype=torch.int64, device=self.device)  # champion of each seat
        self._episode = torch.zeros(m, self.envs, device=self.device)  # reward of the learner so far

    def add(self, champion: Params, spec: PolicySpec) -> None:
        """Add the newest champion; episodes that are under way meet it from their next start."""
        self._actor = self._actor or MeanActor(spec)
        self.champions.append(champion)
        previous_returns = self.returns if len(self.champions) > 1 else self.returns.new_zeros(self.members, 1)
        start = previous_returns.mean(1, keepdim=True)
        self.returns = torch.cat([self.returns, start], 1)

    def reset(self, seed: int) -> Tensor:
        """Own observations [M, E, S] of the learning seats."""
        self._joint = self.market.reset(seed)
        self._draw(torch.ones(self.members, self.envs, dtype=torch.bool, device=self.device))
        return self._mine(self._joint.own)

    def step(self, action: Tensor) -> EnvStep:
        """Step by the learners' actions [M, E, D]."""
        joint = self._champion_actions(self._joint)
        joint[self._seats, :, self._seats] = action.to(joint)
        out = self.market.step(joint)
        reward = self._mine(out.reward)
        terminated = self._mine(out.terminated)
        truncated = self._mine(out.truncated)
        over = terminated | truncated
        self._episode = self._episode + reward
        self._record(over)
        self._joint = out.observation
        self._draw(over)
        final = self._mine(out.final_observation.own)
        return EnvStep(self._mine(out.observation.own), reward, terminated, truncated, final)

    def _mine(self, x: Tensor) -> Tensor:
        """What belongs to the learning seat of each copy: [M, E, M, ...] -> [M, E, ...]."""
        return x[self._seats, :, self._seats]

    def _champion_actions(self, observation: JointObservation) -> Tensor:
        """Actions [M, E, M, D] of the champions drawn for all seats."""
        own = observation.own
        m, e = own.shape[:2]
        actions = own.new_zeros(m, e, m, self.action_size)
        if self._actor is None:
            return actions
        by_seat = own.permute(2, 0, 1, 3).reshape(m, m * e, 1, -1)  # [seat, copy x market, 1, S]
        nothing = own.new_zeros(m, m * e, 0, 0)
        for k, champion in enumerate(self.champions):
            champion_action = self._actor.action(champion, nothing, by_seat, None)  # [seat, M E, 1, D]
            champion_action = champion_action.view(m, m, e, -1).permute(1, 2, 0, 3)
            actions = torch.where((self._opponent == k).unsqueeze(-1), champion_action, actions)
        return actions

    def _draw(self, where: Tensor) -> None:
        """Draw a champion for every seat of the markets `where` [M, E] bool that begin an episode."""
        if not self.champions or not bool(where.any()):
            return
        # Champions that leave the learner less are drawn more: linear in the mean return.
        gap = self.returns.amax(1, keepdim=True) - self.returns
        hard = gap / gap.sum(1, keepdim=True).clamp(min=1e-12)
        k = len(self.champions)
        weights = UNIFORM_SHARE / k + (1 - UNIFORM_SHARE) * torch.where(gap.sum(1, keepdim=True) > 0, hard, 1 / k)
        m = self.members
        draws = torch.multinomial(weights, self.envs * m, replacement=True, generator=self._draws)
        self._opponent = torch.where(where.unsqueeze(-1), draws.view(m, self.envs, m), self._opponent)

    def _record(self, over: Tensor) -> None:
        """Update the mean returns by episodes that ended, `over` [M, E] bool."""
        if not bool(over.any()):
            return
        for k in range(len(self.champions)):
            is_met = (self._opponent == k) & over.unsqueeze(-1)
            is_met[self._seats, :, self._seats] = False
            count = is_met.sum((1, 2))
            mean = (is_met * self._episode.unsqueeze(-1)).sum((1, 2)) / count.clamp(min=1)
            mean_return = RETURN_MEMORY * self.returns[:, k] + (1 - RETURN_MEMORY) * mean
            self.returns[:, k] = torch.where(count > 0, mean_return, self.returns[:, k])
        self._episode = self._episode.masked_fill(over, 0.0)


class ResumableLeagueView(LeagueView):
    """A `LeagueView` of a market with checkpoint() and resume()."""

    market: ResumableMultiAgentVecEnv

    def checkpoint(self) -> dict[str, Tensor]:
        """State of the market, of the league and of the episodes in it."""
        names = self.champions[0]
        return {
            **{f"market.{name}": x for name, x in self.market.checkpoint().items()},
            **{f"champion.{name}": torch.stack([champion[name] for champion in self.champions]) for name in names},
            "returns": self.returns,
            "opponent": self._opponent,
            "episode": self._episode,
            "draws": self._draws.get_state(),
        }

    def resume(self, state: Mapping[str, Tensor]) -> Tensor:
        """Restore a checkpoint; returns the current observations [M, E, S]."""
        stacks = {k.removeprefix("champion."): x for k, x in state.items() if k.startswith("champion.")}
        count = len(next(iter(stacks.values())))
        self.champions = [{name: x[i].to(self.device) for name, x in stacks.items()} for i in range(count)]
        self.returns = state["returns"].to(self.device)
        self._opponent = state["opponent"].to(self.device)
        self._episode = state["episode"].to(self.device)
        self._draws.set_state(state["draws"])
        self._joint = self.market.resume(
            {k.removeprefix("market."): x for k, x in state.items() if k.startswith("market.")}
        )
        return self._mine(self._joint.own)


class League:
    """Adds the learners of all seats to the champions of a view at the end of every generation.

    The first champion is the agent before training. generations: champions that are added, evenly spaced.
    """

    def __init__(self, view: LeagueView, learner: Learner, *, samples: int, generations: int = GENERATIONS) -> None:
        """learner: learner of the view. samples: steps of a market over which the generations are spread."""
        if generations < 1:
            raise ConfigError(f"generations must be at least 1, got {generations}")
        self.view = view
        self.learner = learner
        self.samples = samples
        self.generations = generations
        self._add()

    def rate(self, age: int) -> float:
        """Factor of the learning rate after `age` samples: the value of the schedule at the start of the generation."""
        config = self.learner.config
        if not (isinstance(config, PPOConfig) and config.learning_rate_schedule == "linear"):
            return 1.0
        return 1 - min(self._generation(age), self.generations - 1) / self.generations

    def advance(self) -> None:
        """Add a champion if an iteration has ended a generation."""
        if len(self.view.champions) <= self._generation(self.learner.samples[0]):
            self._add()

    def _generation(self, age: int) -> int:
        return age * self.generations // self.samples

    def _add(self) -> None:
        champion = {name: x.clone() for name, x in self.learner.algorithm.weights().items()}
        self.view.add(champion, self.learner.algorithm.spec)


MultiAgentAlgorithm = Literal["ippo", "mappo", "maddpg", "league"]
MULTI_AGENT_ALGORITHMS: tuple[MultiAgentAlgorithm, ...] = get_args(MultiAgentAlgorithm)
Progress = Callable[[int, Metrics], None]


class JointPolicy:
    """The agents of a trained learner. layout: how the agents of a market are members or environments of it."""

    def __init__(self, learner: Learner, layout: AgentsView) -> None:
        self.learner = learner
        self.layout = layout

    def act(self, observation: JointObservation) -> Tensor:
        """Actions [P, E, M, D] without exploration, for any number E of markets."""
        return self.layout.joint(self.learner.act(self.layout.rows(observation)))


def layout_of(market: MultiAgentVecEnv, algorithm: str, *, shared: bool) -> AgentsView:
    """The view in which the trained agents of an algorithm act on a market."""
    return view_agents(market, shared=shared, central=algorithm in ("mappo", "maddpg"))


def training_view(
    market: MultiAgentVecEnv, algorithm: str, *, shared: bool = False, seed: int = 0
) -> AgentsView | LeagueView:
    """The view of a market that an algorithm trains on. Raises ConfigError for a market that does not fit."""
    if algorithm != "league":
        return layout_of(market, algorithm, shared=shared)
    kind = ResumableLeagueView if isinstance(market, ResumableMultiAgentVecEnv) else LeagueView
    return kind(market, seed)


def check_algorithm(algorithm: str, config: AgentConfig | None) -> None:
    """Raises ConfigError for an unknown algorithm of many agents, and for settings of another one."""
    if algorithm not in MULTI_AGENT_ALGORITHMS:
        raise ConfigError(f"--algorithm must be one of {', '.join(MULTI_AGENT_ALGORITHMS)}, got {algorithm!r}")
    kind = MADDPGConfig if algorithm == "maddpg" else PPOConfig
    if config is not None and not isinstance(config, kind):
        raise ConfigError(f"{algorithm} takes a {kind.__name__}, got {type(config).__name__}")


def train_agents(
    market: MultiAgentVecEnv,
    algorithm: str,
    config: PPOConfig | MADDPGConfig | None = None,
    *,
    samples: int,
    shared: bool = False,
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> JointPolicy:
    """Train all agents on `samples` steps of the markets of each member. shared: one network for all agents.

    A league takes a market with one member for each agent, and trains one joint policy.

    config: PPOConfig or MADDPGConfig; default: the defaults of the algorithm. progress(samples, metrics) is called
    after every iteration. Raises ConfigError for an unknown algorithm and settings that do not fit.
    """
    check_algorithm(algorithm, config)
    view = training_view(market, algorithm, shared=shared, seed=seed)
    learner = Learner(view, config or (MADDPGConfig() if algorithm == "maddpg" else default_ppo()), seed=seed)
    league = League(view, learner, samples=samples) if isinstance(view, LeagueView) else None
    each = market.agents if shared else 1  # samples of the learner in a step of a market

    def on_iteration(_: Learner, metrics: Metrics) -> None:
        if league is not None:
            league.advance()
        progress(learner.samples[0] // each, metrics)

    learner.learn(samples * each, callback=on_iteration, schedule=None if league is None else league.rate)
    return JointPolicy(learner, layout_of(market, algorithm, shared=shared))


def default_ppo(**changes: Any) -> PPOConfig:
    """Settings of PPO that suit episodes of some ten steps with costs alone."""
    config = PPOConfig(
        policy="mlp", hidden=(32, 32), horizon=20, gamma=1.0, gae_lambda=0.95, log_std_init=-1.5, epochs=4
    )
    return dataclasses.replace(config, **changes)
