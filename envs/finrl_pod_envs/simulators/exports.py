"""A VecEnv for trainers of other simulators: as VecTask of Isaac Gym, five-tuple of Isaac Lab, VecEnv of rsl_rl.

P x E environments become N = P * E. Observations are flat float32 rows, actions numbers in [-1, 1]: actions of markets
are multiplied by the scale of their action kind before they become weights, as in the Gymnasium views.
Resets happen inside the step that ends an episode; the observations before them are `extras["final_obs"]`, as in Isaac
Lab. Time-outs are truncations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from finrl_pod.errors import ConfigError, SetupError
from finrl_pod.market.protocols import MarketVecEnv
from finrl_pod.protocols import VecEnv
from finrl_pod.rl.networks.observation_adapter import action_scale
from finrl_pod.types import EnvStep, Tensor
from finrl_pod_envs.observation import flat, flat_size
from finrl_pod_envs.simulators.adapters import FINAL, GROUP, Extras

ENDLESS = 1_000_000  # reported to trainers that ask for the length of episodes without a limit


class _Exported:
    """Shared by the exports: N environments, flat rows [N, S], actions [N, D] in [-1, 1], lengths of episodes."""

    def __init__(self, env: VecEnv, *, seed: int = 0, max_episode_length: int = ENDLESS) -> None:
        """max_episode_length: limit of an environment without a market; a market has `episode_bars`.

        Raises ConfigError for discrete actions: these interfaces have none.
        """
        if env.action_kind == "discrete":
            raise ConfigError(
                "the interfaces of Isaac and rsl_rl have continuous actions; this environment has discrete ones"
            )
        self.env = env
        self._seed = seed
        self.num_envs = env.members * env.envs
        self.num_actions = env.action_size
        if isinstance(env, MarketVecEnv):
            per_asset, per_account = env.extras
            self.num_obs = flat_size(env.market, per_asset * env.market.shape[1] + per_account)
            self.max_episode_length = env.episode_bars
        else:
            self.num_obs = env.observation_size
            self.max_episode_length = max_episode_length
        self.device = env.device
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._scale = action_scale(env.action_kind)

    @property
    def unwrapped(self) -> Any:
        return self

    @property
    def single_action_space(self) -> Any:
        """Box [-1, 1] of gymnasium."""
        from gymnasium.spaces import Box

        return Box(-1.0, 1.0, (self.num_actions,))

    @property
    def action_space(self) -> Any:
        return self.single_action_space

    def close(self) -> None:
        """Nothing is left open."""

    def _rows(self, observation: Any) -> Tensor:
        """[P, E, S] or (bar, account) -> [N, S] float32."""
        rows = flat(self.env.market, observation) if isinstance(self.env, MarketVecEnv) else observation
        return rows.reshape(self.num_envs, -1).float()

    def _begin(self, seed: int | None) -> Tensor:
        self._seed = self._seed if seed is None else seed
        observation = self.env.reset(self._seed)
        self.episode_length_buf = torch.zeros_like(self.episode_length_buf)
        return self._rows(observation)

    def _advance(self, actions: Tensor) -> tuple[EnvStep, Tensor]:
        """Step by [N, D]; the outcome and the flags [N] of ended episodes."""
        values = actions.detach().to(self.device).clamp(-1.0, 1.0) * self._scale
        out = self.env.step(values.view(self.env.members, self.env.envs, -1))
        episode_ends = (out.terminated | out.truncated).flatten()
        self.episode_length_buf = torch.where(episode_ends, 0, self.episode_length_buf + 1)
        return out, episode_ends

    def _with_final(self, extras: Extras, group: str, out: EnvStep, episode_ends: Tensor) -> Extras:
        """Extras with the observations before the reset, in steps that end an episode."""
        return {**extras, FINAL: {group: self._rows(out.final_observation)}} if bool(episode_ends.any()) else extras


class ExportedVecTask(_Exported):
    """A VecEnv as an Isaac Gym `VecTask`; also what `rl_games` asks of a vectorised environment.

    obs_buf, rew_buf, reset_buf, progress_buf, extras: buffers of `VecTask`. Observations are clipped at +-clip_obs,
    actions at +-clip_actions, 1 at most.
    """

    num_states = 0

    def __init__(self, env: VecEnv, *, clip_obs: float = math.inf, clip_actions: float = 1.0, **terms: Any) -> None:
        super().__init__(env, **terms)
        self.clip_obs = clip_obs
        self.clip_actions = clip_actions
        self.rl_device = self.device
        self.num_acts = self.num_actions
        self.obs_buf = self._begin(None)
        self.rew_buf = torch.zeros(self.num_envs, device=self.device)
        self.reset_buf = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self.extras: Extras = {}

    @property
    def observation_space(self) -> Any:
        """Box of gymnasium."""
        from gymnasium.spaces import Box

        return Box(-self.clip_obs, self.clip_obs, (self.num_obs,))

    @property
    def progress_buf(self) -> Tensor:
        """Steps [N] of the current episodes."""
        return self.episode_length_buf

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Extras]:
        """Step by actions [N, D]: ({"obs": [N, S]}, reward [N], reset [N] int64, {"time_outs": [N] bool})."""
        out, episode_ends = self._advance(actions.clamp(-self.clip_actions, self.clip_actions))
        self.obs_buf = self._rows(out.observation)
        self.rew_buf = out.reward.flatten()
        self.reset_buf = episode_ends.long()
        self.extras = self._with_final({"time_outs": out.truncated.flatten()}, "obs", out, episode_ends)
        return self.reset(), self.rew_buf, self.reset_buf, self.extras

    def reset(self) -> dict[str, Tensor]:
        """The current observations; episodes go on."""
        return {"obs": self.obs_buf.clamp(-self.clip_obs, self.clip_obs)}

    def reset_idx(self, env_ids: Tensor) -> None:
        """Start new episodes of all environments; a market does not reset some of them.

        Raises ConfigError for fewer. The seed is drawn from the global generator of torch, as tasks do.
        """
        if len(env_ids) != self.num_envs:
            raise ConfigError(f"reset_idx() takes all {self.num_envs} environments, got {len(env_ids)}")
        self.obs_buf = self._begin(int(torch.randint(2**31, ())))

    def reset_done(self) -> tuple[dict[str, Tensor], Tensor]:
        """The current observations and no ids: episodes that end are followed by new ones in the same step."""
        return self.reset(), torch.empty(0, dtype=torch.int64, device=self.device)

    # ------------------------------------------------------------------ rl_games.common.ivecenv.IVecEnv

    def get_env_info(self) -> Any:
        """Spaces and the number of agents."""
        return {"observation_space": self.observation_space, "action_space": self.action_space, "agents": 1}

    def get_number_of_agents(self) -> int:
        return 1

    def has_action_masks(self) -> bool:
        return False

    def seed(self, seed: int) -> None:
        """Start all episodes from a seed."""
        self.obs_buf = self._begin(seed)

    def set_train_info(self, env_frames: int, *_: Any, **__: Any) -> None:
        """Nothing depends on the progress of training."""

    def get_env_state(self) -> None:
        """Nothing is saved with the checkpoint of a trainer."""

    def set_env_state(self, env_state: Any) -> None:
        """Nothing is restored."""


class ExportedIsaacLab(_Exported):
    """A VecEnv as an Isaac Lab environment: groups of observations, five-tuple, resets inside `step`."""

    state_space = None
    metadata: dict[str, str] = {}  # noqa: RUF012  read by wrappers

    @property
    def single_observation_space(self) -> Any:
        """Dict of gymnasium with the group "policy"."""
        from gymnasium.spaces import Box, Dict

        return Dict({GROUP: Box(-math.inf, math.inf, (self.num_obs,))})

    @property
    def observation_space(self) -> Any:
        return self.single_observation_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Tensor], Extras]:  # noqa: ARG002
        """Start all episodes; without a seed from the one given at first."""
        return {GROUP: self._begin(seed)}, {}

    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, Extras]:
        """Step by actions [N, D]: ({"policy": [N, S]}, reward, terminated, truncated [N], extras)."""
        out, episode_ends = self._advance(action)
        extras = self._with_final({}, GROUP, out, episode_ends)
        terminated = out.terminated.flatten()
        truncated = out.truncated.flatten()
        return {GROUP: self._rows(out.observation)}, out.reward.flatten(), terminated, truncated, extras


class ExportedRslRl(_Exported):
    """A VecEnv as a `rsl_rl.env.VecEnv`, for `OnPolicyRunner`. Needs the package tensordict."""

    def __init__(self, env: VecEnv, **terms: Any) -> None:
        super().__init__(env, **terms)
        self.cfg: dict[str, str] = {}
        self._current = self._begin(None)

    def get_observations(self) -> Any:
        """TensorDict with the group "policy" [N, S]. Raises SetupError without tensordict."""
        return self._groups(self._current)

    def reset(self) -> tuple[Any, Extras]:
        """Start all episodes."""
        self._current = self._begin(None)
        return self.get_observations(), {}

    def seed(self, seed: int = -1) -> int:
        """Set the seed of the next reset; negative ones keep it. Returns the seed."""
        self._seed = seed if seed >= 0 else self._seed
        return self._seed

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Extras]:
        """Step by actions [N, D]: (TensorDict, reward [N], done [N] int64, {"time_outs": [N]})."""
        out, episode_ends = self._advance(actions)
        self._current = self._rows(out.observation)
        extras: Extras = {"time_outs": out.truncated.flatten()}
        if bool(episode_ends.any()):
            extras[FINAL] = self._groups(self._rows(out.final_observation))
        return self.get_observations(), out.reward.flatten(), episode_ends.long(), extras

    def _groups(self, rows: Tensor) -> Any:
        try:
            from tensordict import TensorDict
        except ImportError:
            raise SetupError("the interface of rsl_rl needs tensordict; pip install tensordict") from None
        return TensorDict({GROUP: rows}, batch_size=[self.num_envs])


def register_rl_games(name: str, make: Callable[[], ExportedVecTask]) -> None:
    """Register an environment for configs of rl_games: `env_name = name`. Raises SetupError without the package."""
    try:
        from rl_games.common import env_configurations, vecenv
    except ImportError:
        raise SetupError("rl_games is not installed; pip install rl-games") from None
    kind = f"finrl_pod {name}"
    vecenv.register(kind, lambda config_name, num_actors, **terms: make())  # noqa: ARG005
    env_configurations.register(name, {"vecenv_type": kind, "env_creator": lambda **terms: make()})  # noqa: ARG005
