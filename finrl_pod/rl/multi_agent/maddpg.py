"""MADDPG (Lowe et al. 2017): deterministic actors on own observations, critics on the state and all actions.

Shapes: P members, E markets, M agents, B items of a batch, S numbers of an observation, C of the state, D of an action.
Networks are rows [R, ...] of one batched tensor: R = P M with separate weights, R = P with shared ones, where agents
are further items of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.protocols import MultiAgentVecEnv
from finrl_pod.random import MemberGenerators, generators
from finrl_pod.rl.algorithms.base import Metrics, scale_of_rewards
from finrl_pod.rl.experience import Replay
from finrl_pod.rl.multi_agent.views import AgentsView
from finrl_pod.rl.networks.layers import Params, mlp, mlp_init
from finrl_pod.rl.optimisation.optimiser import TrainState
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.multi_agent import MADDPGConfig
from finrl_pod.types import JointObservation, Tensor

Batch = Mapping[str, Tensor]
RATES = ("learning_rate", "tau", "max_grad_norm")  # settings of the gradient steps


class MADDPG:
    """P desks of M agents, trained side by side from one replay buffer each."""

    def __init__(
        self,
        market: MultiAgentVecEnv,
        config: MADDPGConfig | None = None,
        *,
        shared: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """shared: one actor and one critic for all agents; else one of each per agent.

        Raises ConfigError for settings out of range.
        """
        self.market = market
        self.config = config or MADDPGConfig()
        self.seed = seed
        self.dtype = dtype
        self.shared = shared
        self._view = AgentsView(market, shared=shared, central=False)  # rows of networks and agents
        config = self.config
        check_settings("agent.", config)
        if config.batch_size > config.buffer_size:
            raise ConfigError(
                f"agent.batch_size must be at most agent.buffer_size, got {config.batch_size} and {config.buffer_size}"
            )
        p = market.members
        m = market.agents
        device = market.device
        own = market.observation_size
        state = market.state_size
        action = market.action_size
        self.per = 1 if shared else m  # networks of a member
        self.layers = len(config.hidden) + 1
        rate = {name: torch.full((p,), getattr(config, name), dtype=dtype, device=device) for name in RATES}
        self.train_state = TrainState(rate, torch.ones(p, dtype=torch.bool, device=device), config.weight_decay)
        streams = generators(seed, market.member_ids, "initial weights")
        # The critic reads the observation of the agent and action apart too, so that one critic can serve all agents.
        sizes = {"actor": (own, action), "critic": (state + own + action * (m + 1), 1)}
        for name, (inputs, outputs) in sizes.items():
            widths = (inputs, *config.hidden, outputs)
            rows = [mlp_init(widths, s, dtype) for s in streams for _ in range(self.per)]
            if name == "actor":
                for row in rows:  # new agents act close to 0
                    row[f"w{self.layers - 1}"] *= 0.01
                    row[f"b{self.layers - 1}"] *= 0.01
            self.train_state.add(name, rows, per=self.per, target=True)
        fields = {
            "own": ((m, own), dtype), "state": ((state,), dtype), "action": ((m, action), dtype),
            "reward": ((m,), dtype), "not_done": ((), dtype),
            "next_own": ((m, own), dtype), "next_state": ((state,), dtype),
        }  # fmt: skip
        self.replay = Replay(fields, p, config.buffer_size, torch.device(device))
        self.reward_scale: Tensor | None = None  # [P]
        self.samples = 0
        self._noises = MemberGenerators(generators(seed, market.member_ids, "actions", device))
        self._choices = MemberGenerators(generators(seed, market.member_ids, "replay", device))
        self._observation: JointObservation | None = None

    def learn(self, samples: int, callback: Callable[[MADDPG, Metrics], bool | None] | None = None) -> Metrics:
        """Train on at least `samples` steps of the markets of each member; returns the last metrics [P]."""
        config = self.config
        metrics = Metrics()
        total = self.samples + samples
        while self.samples < total:
            reward = self._collect()
            if self.samples >= config.learning_starts and self.replay.count >= config.batch_size:
                factor = max(0.0, 1 - self.samples / total) if config.learning_rate_schedule == "linear" else 1.0
                for _ in range(config.gradient_steps):
                    metrics = self._update(factor)
            metrics = {**metrics, "reward": reward}
            if callback is not None and callback(self, metrics) is False:
                break
        return metrics

    @torch.no_grad()
    def _collect(self) -> Tensor:
        """Take `horizon` steps of every market; returns the mean reward [P]."""
        market = self.market
        config = self.config
        if self._observation is None:
            self._observation = market.reset(self.seed)
        total = torch.zeros(market.members, dtype=self.dtype, device=market.device)
        for _ in range(config.horizon):
            now = self._observation
            shape = (market.envs, market.agents, market.action_size)
            if self.samples < config.learning_starts:
                action = 2 * self._noises.uniform(shape, self.dtype) - 1
            else:
                noise = self._noises.normal(shape, self.dtype)
                action = (self.act(now) + config.exploration_noise * noise).clamp(-1, 1)
            out = market.step(action)
            items = {
                "own": now.own, "state": now.state, "action": action, "reward": out.reward,
                "not_done": (~out.terminated).to(self.dtype),
                "next_own": out.final_observation.own, "next_state": out.final_observation.state,
            }  # fmt: skip
            self.replay.add(items)
            self._observation = out.observation
            self.samples += market.envs
            total += out.reward.mean((1, 2))
        return total / config.horizon

    def _update(self, factor: float) -> Metrics:
        """One gradient step of the critics and of the actors on a batch."""
        batch = self._batch()
        with torch.no_grad():
            following = self._actions(self.train_state.targets["actor"].views, batch["next_own"])
            after = self._values(
                self.train_state.targets["critic"].views, batch["next_state"], batch["next_own"],
                following.unsqueeze(2).expand(*following.shape[:2], self.market.agents, *following.shape[2:]),
            )  # fmt: skip
            target = batch["reward"] + self.config.gamma * batch["not_done"].unsqueeze(-1) * after  # [P, B, M]
        # What the critic of agent i reads: all actions, [P, B, M (of i), M, D].
        joint_action = batch["action"].unsqueeze(2).expand(*batch["action"].shape[:2], self.market.agents, -1, -1)
        value = self._values(self.train_state.views("critic"), batch["state"], batch["own"], joint_action)
        loss = self._loss_rows((value - target).square())
        norm = self.train_state.gradient_step("critic", loss, factor)

        # Agent i moves up its critic by its own action; the other actions come from the batch.
        own = self._actions(self.train_state.views("actor"), batch["own"])  # [P, B, M, D]
        m = self.market.agents
        mine = torch.eye(m, dtype=torch.bool, device=own.device).view(1, 1, m, m, 1)
        joint = torch.where(mine, own.unsqueeze(3), joint_action)
        critic_weights = self.train_state.detached("critic")
        gain = self._values(critic_weights, batch["state"], batch["own"], joint)
        actor_loss = self._loss_rows(-gain)
        self.train_state.gradient_step("actor", actor_loss, factor)
        self.train_state.polyak_update()
        return {"critic_loss": self._by_member(loss), "actor_loss": self._by_member(actor_loss), "grad_norm": norm}

    def _batch(self) -> Batch:
        """A batch [P, B, ...] of the buffer, rewards scaled."""
        indices = self._choices.integers(self.replay.count, (self.config.batch_size,)).unsqueeze(0)
        data = {name: x[0] for name, x in self.replay.take(indices).items()}
        if self.reward_scale is None:
            rewards = self.replay.data["reward"][:, : self.replay.count].flatten(1)
            scale = scale_of_rewards(rewards.std(1)) if self.config.scale_rewards else torch.ones_like(rewards[:, 0])
            self.reward_scale = scale
        return {**data, "reward": data["reward"] * self.reward_scale.view(-1, 1, 1)}

    def _actions(self, params: Params, own: Tensor) -> Tensor:
        """Actions [P, B, M, D] for own observations [P, B, M, S]."""
        return torch.tanh(self._view.joint(mlp(params, self._view.by_agent(own), self.layers)))

    def _values(self, params: Params, state: Tensor, own: Tensor, joint: Tensor) -> Tensor:
        """Values [P, B, M] of each agent: state [P, B, C], own [P, B, M, S], joint actions [P, B, M, M, D]."""
        m = self.market.agents
        mine = joint[:, :, torch.arange(m), torch.arange(m)]  # [P, B, M, D]
        wide = state.unsqueeze(2).expand(*own.shape[:3], state.shape[-1])
        rows = self._view.by_agent(torch.cat([wide, own, mine, joint.flatten(3)], -1))
        return self._view.joint(mlp(params, rows, self.layers)).squeeze(-1)

    def _loss_rows(self, loss: Tensor) -> Tensor:
        """Losses [P, B, M] averaged over the items of each network: [R]."""
        return loss.mean((1, 2)) if self.shared else loss.mean(1).flatten()

    def _by_member(self, rows: Tensor) -> Tensor:
        return rows.detach().view(self.market.members, self.per).mean(1)

    @torch.no_grad()
    def act(self, observation: JointObservation) -> Tensor:
        """Actions [P, E, M, D] without exploration."""
        return self._actions(self.train_state.detached("actor"), observation.own.to(self.dtype))

    def weights(self) -> dict[str, Tensor]:
        """Weights of the actors: name -> [networks, ...]."""
        return self.train_state.detached("actor")
