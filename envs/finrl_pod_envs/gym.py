"""Gymnasium adapters of the market environments, for agents of other libraries.

`GymMarketEnv` is one account, `GymVectorEnv` a batch of them at the speed of the batched market. Both have flat
observations and actions in [-1, 1], or choices. Actions of the portfolio environment are multiplied by `SCORE_SCALE`
before they become weights, so that a bounded action can still put nearly everything into one asset; under a mandate by
`TILT_SCALE`, so that it can nearly reach the largest tilt.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from finrl_pod.arguments import check_arguments
from finrl_pod.data.splits import REWARD_LAG
from finrl_pod.errors import InputError
from finrl_pod.rl.networks.inputs import OBSERVATION_BOUND, action_scale
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import EnvStep, MarketTensor, Observation, Tensor
from finrl_pod_envs.observation import flat
from finrl_pod_envs.trading_envs import make_env

Array = NDArray[np.float32]
VectorInfo = dict[str, NDArray[Any] | dict[str, NDArray[Any]]]


def training_bars(market: MarketTensor, first: int | None, last: int | None) -> tuple[int | None, int | None]:
    """First and last decision bar of a view: by default the training bars, on which the normaliser was fitted.

    The last decision is two bars before their end, so that its fill and its reward lie inside. Bounds that are given
    stay as they are; of a market whose normaliser was given, all bars are used.
    """
    if market.fitted is None or not (first is None and last is None):
        return first, last
    begin, end = market.fitted
    fits_all_bars = end >= market.shape[0] - 1  # fitted on all bars: nothing is held out
    return (begin, None) if fits_all_bars else (begin, end - REWARD_LAG)


class _Adapter:
    """Shared by both adapters: the environment, spaces, checks, conversion between numpy rows and torch batches."""

    def __init__(
        self,
        market: MarketTensor,
        config: EnvironmentConfig | None,
        span: tuple[int | None, int | None],
        **options: Any,
    ) -> None:
        first, last = training_bars(market, *span)
        env = self.env = make_env(market, config or EnvironmentConfig(), first=first, last=last, **options)
        self.observation = gymnasium.spaces.Box(
            -OBSERVATION_BOUND, OBSERVATION_BOUND, (env.observation_size,), np.float32
        )
        self.discrete = env.action_kind == "discrete"
        self.action: gymnasium.spaces.Space[Any] = (
            gymnasium.spaces.Discrete(env.actions)
            if self.discrete
            else gymnasium.spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)
        )
        self._scale = action_scale(env.action_kind)

    def rows(self, observation: Observation) -> Array:
        """[E, size] float32, a new array."""
        row = flat(self.env.market, observation)[0].detach().clamp(-OBSERVATION_BOUND, OBSERVATION_BOUND)
        return np.array(row.cpu().numpy(), dtype=np.float32)

    def step(self, action: Any, shape: tuple[int, ...]) -> EnvStep:
        """Step with actions of `shape`, clipped to [-1, 1] unless they are choices.

        Raises InputError for another shape and for NaN or infinity.
        """
        values = np.asarray(action, dtype=np.float32)
        if values.shape != shape:
            raise InputError(f"an action must have shape {shape}, got {values.shape}")
        if not np.isfinite(values).all():
            count = int((~np.isfinite(values)).sum())
            raise InputError(f"an action of shape {shape} must be finite, got {count} values that are NaN or infinite")
        if not self.discrete:
            values = values.clip(-1.0, 1.0) * np.float32(self._scale)
        return self.env.step(
            torch.from_numpy(values).to(self.env.device).reshape(1, self.env.envs, self.env.action_size)
        )


def _numpy(values: Tensor) -> NDArray[Any]:
    """Convert [1, E] on any device to a new array [E]."""
    return np.array(values[0].detach().cpu().numpy())


class GymMarketEnv(gymnasium.Env[Array, Array]):
    """One market account as a Gymnasium environment; an episode is one window.

    step_info: equity and cost in currency, turnover as a fraction of equity, time (of the reached bar, ISO 8601).
    """

    metadata = {"render_modes": []}  # noqa: RUF012  Gymnasium declares it as an instance variable

    @check_arguments
    def __init__(
        self,
        market: MarketTensor,
        config: EnvironmentConfig | None = None,
        *,
        first: int | None = None,
        last: int | None = None,
        mandate: MandateConfig | None = None,
    ) -> None:
        """Decisions at bars first..last of `market`, by default its training bars (see `training_bars`); each reset
        draws the start of the window.

        mandate: bounds on what the account may hold and trade, as for `MarketEnv`.
        """
        self._adapter = _Adapter(market, config, (first, last), envs=1, group=1, mandate=mandate)
        self.observation_space = self._adapter.observation
        self.action_space = self._adapter.action
        self._running = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, float]]:
        """Start a new episode; a seed makes this and later episodes repeatable."""
        super().reset(seed=seed, options=options)
        observation = self._adapter.env.reset(int(self.np_random.integers(2**31)), stagger=False)
        self._running = True
        return self._adapter.rows(observation)[0], {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, float | str]]:
        """action: [action_size] in [-1, 1]. Raises InputError for another shape, NaN, or a finished episode."""
        if not self._running:
            raise InputError("the episode is over or was never started: call reset() before step()")
        outcome = self._adapter.step(action, self._adapter.action.shape or ())
        terminated = bool(outcome.terminated)
        truncated = bool(outcome.truncated)
        self._running = not (terminated or truncated)
        market = self._adapter.env.market
        step_info: dict[str, float | str] = {
            "equity": float(outcome.equity),
            "turnover": float(outcome.turnover),
            "cost": float(outcome.cost),
            "time": str(market.times[int(outcome.final_observation.bar)]),
        }
        return self._adapter.rows(outcome.final_observation)[0], float(outcome.reward), terminated, truncated, step_info


class GymVectorEnv(gymnasium.vector.VectorEnv[Array, Array, NDArray[Any]]):
    """E market accounts as a Gymnasium vector environment, reset in the same step (AutoresetMode.SAME_STEP).

    step_info: equity, turnover, cost [E]; in steps where episodes end also, as in the vector environments of Gymnasium,
    final_obs [E] (object array, None elsewhere), final_info, and the masks _final_obs, _final_info.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    @check_arguments
    def __init__(
        self,
        market: MarketTensor,
        config: EnvironmentConfig | None = None,
        *,
        first: int | None = None,
        last: int | None = None,
        envs: int | None = None,
        group: int = 1,
        stagger: bool = False,
        mandate: MandateConfig | None = None,
    ) -> None:
        """first, last: decision bars, see `GymMarketEnv`. envs: number of accounts, by default the config's; each
        `group` of them shares a window.

        stagger: give first episodes a random length, so that not all end in the same step.
        """
        self._adapter = _Adapter(market, config, (first, last), envs=envs, group=group, mandate=mandate)
        self._stagger = stagger
        self.num_envs = self._adapter.env.envs
        self.single_observation_space = self._adapter.observation
        self.single_action_space = self._adapter.action
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, float]]:
        """Start new episodes; a seed makes these and later episodes repeatable."""
        super().reset(seed=seed, options=options)
        observation = self._adapter.env.reset(int(self.np_random.integers(2**31)), stagger=self._stagger)
        return self._adapter.rows(observation), {}

    def step(
        self, actions: Array
    ) -> tuple[Array, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], VectorInfo]:
        """actions: [E, action_size] in [-1, 1]. Raises InputError for another shape or NaN."""
        outcome = self._adapter.step(actions, (self.num_envs, *(self._adapter.action.shape or ())))
        terminated = _numpy(outcome.terminated)
        truncated = _numpy(outcome.truncated)
        episode_ends = terminated | truncated
        step_info: dict[str, NDArray[Any]] = {}
        for name in ("equity", "turnover", "cost"):
            step_info |= {name: _numpy(getattr(outcome, name)), f"_{name}": np.ones(self.num_envs, np.bool_)}
        full_info: VectorInfo = {**step_info}
        if episode_ends.any():
            full_info = self._with_finals(step_info, episode_ends, self._adapter.rows(outcome.final_observation))
        reward = _numpy(outcome.reward).astype(np.float64)
        return self._adapter.rows(outcome.observation), reward, terminated, truncated, full_info

    def _with_finals(
        self, step_info: dict[str, NDArray[Any]], episode_ends: NDArray[np.bool_], rows: Array
    ) -> VectorInfo:
        """Add final observations and info of finished environments, in the layout of Gymnasium."""
        finals = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(episode_ends):
            finals[i] = rows[i].copy()
        inner: dict[str, NDArray[Any]] = {}
        for name in ("equity", "turnover", "cost"):
            inner |= {name: np.where(episode_ends, step_info[name], 0), f"_{name}": episode_ends.copy()}
        return {
            **step_info,
            "final_obs": finals,
            "_final_obs": episode_ends.copy(),
            "final_info": inner,
            "_final_info": episode_ends.copy(),
        }
