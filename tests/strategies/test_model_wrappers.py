"""Models of Stable-Baselines3 behind wrappers: the same observations as in training, or a refusal."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from finrl_pod_strategies.model_wrappers import model_view
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, NormalizeObservation, RescaleAction

from finrl_pod.errors import InputError

SIZE = 3


class Quiet(gymnasium.Env[Any, Any]):
    """An environment whose observations are random."""

    observation_space = gymnasium.spaces.Box(-10, 10, (SIZE,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.np_random.uniform(-3, 3, SIZE).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.uniform(-3, 3, SIZE).astype(np.float32), 0.0, False, False, {}


class ModelOf:
    """A model as Stable-Baselines3 keeps its environment. env: outermost wrapper."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = env.observation_space


def vectorised(*wrappers: Any) -> Any:
    common = pytest.importorskip("stable_baselines3.common.vec_env")

    def make() -> Any:
        env: Any = Quiet()
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    return common.DummyVecEnv([make])


ROW = np.array([0.5, -1.0, 2.0], np.float32)


@pytest.mark.slow
def test_vec_normalize_uses_its_statistics_and_keeps_them() -> None:
    common = pytest.importorskip("stable_baselines3.common.vec_env")
    scaled = common.VecNormalize(common.VecMonitor(vectorised()))
    scaled.obs_rms.mean += 0.5
    scaled.obs_rms.var *= 4
    view = model_view(ModelOf(scaled), SIZE)
    assert view.observation(ROW) == pytest.approx((ROW - 0.5) / 2, abs=1e-5)
    assert scaled.obs_rms.mean == pytest.approx(np.full(SIZE, 0.5))
    assert view.statistics["VecNormalize.mean"].tolist() == [0.5] * SIZE
    plain = model_view(ModelOf(common.VecNormalize(vectorised(), norm_obs=False)), SIZE)
    assert plain.observation(ROW) is ROW


def test_wrappers_of_one_environment_are_applied_from_inside_out() -> None:
    model = ModelOf(vectorised(FlattenObservation, NormalizeObservation))
    normaliser = model.env.envs[0]
    normaliser.obs_rms.mean = np.ones(SIZE)
    normaliser.obs_rms.var = np.full(SIZE, 4.0)
    count = normaliser.obs_rms.count
    assert model_view(model, SIZE).observation(ROW) == pytest.approx((ROW - 1) / 2, abs=1e-5)
    assert normaliser.obs_rms.count == count
    rescaled = model_view(ModelOf(vectorised(lambda env: RescaleAction(env, np.float32(0), np.float32(1)))), SIZE)
    assert rescaled.action(np.array([0.0, 1.0], np.float32)) == pytest.approx([-1.0, 1.0])


def test_views_that_need_more_than_one_bar_are_refused() -> None:
    common = pytest.importorskip("stable_baselines3.common.vec_env")
    for env in (common.VecFrameStack(vectorised(), 4), vectorised(lambda env: FrameStackObservation(env, 2))):
        with pytest.raises(InputError, match=r"ModelOf was trained behind .* normalised observation of one bar"):
            model_view(ModelOf(env), SIZE)
    loaded = ModelOf(common.VecFrameStack(vectorised(), 4))
    loaded.env = None
    with pytest.raises(InputError, match=r"observations of shape \(12,\).* normalised observation of one bar"):
        model_view(loaded, SIZE)


def test_other_models_observe_the_market_as_it_is() -> None:
    view = model_view(object(), SIZE)
    assert view.observation(ROW) is ROW
    assert view.action(ROW) is ROW
    assert view.statistics == {}
