"""Exported agents give the same actions as finrl_pod, in a process that cannot import it."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from finrl_pod_app.environment_training.config import TrainingConfig, agent_config
from finrl_pod_app.environment_training.saved_agents import load_agents
from finrl_pod_app.environment_training.training import train
from finrl_pod_app.setup.extension_checks import ASSETS, random_market
from finrl_pod_app.training.agent_export import export_run, export_strategy
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.trading_envs import make_env
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.data.tensor import normalise
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AgentConfig, DQNConfig, PPOConfig, SACConfig, TD3Config
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import AgentSnapshot
from finrl_pod.user_files import user_object

pytestmark = pytest.mark.slow

LOAD_TORCH = """
import sys
sys.modules.update({name: None for name in ("finrl_pod", "finrl_pod_envs", "finrl_pod_strategies", "finrl_pod_app")})
import json, numpy as np, torch
from pathlib import Path
for folder in map(Path, sys.argv[1:]):
    inputs = [torch.from_numpy(x) for x in np.load(folder / "inputs.npz").values()]
    found = torch.export.load(folder / "agent.pt2").module()(*inputs)
    assert json.loads((folder / "agent.json").read_text())["output"]["name"] == "action"
    np.testing.assert_allclose(found.numpy(), np.load(folder / "expected.npy"), rtol=1e-5, atol=1e-6)
print("equal")
"""
LOAD_ONNX = """
import sys
own = ("finrl_pod", "finrl_pod_envs", "finrl_pod_strategies", "finrl_pod_app")
sys.modules.update({name: None for name in (*own, "torch")})
import numpy as np, onnxruntime
from pathlib import Path
for folder in map(Path, sys.argv[1:]):
    session = onnxruntime.InferenceSession(folder / "agent.onnx", providers=["CPUExecutionProvider"])
    found, = session.run(["action"], dict(np.load(folder / "inputs.npz")))
    np.testing.assert_allclose(found, np.load(folder / "expected.npy"), rtol=1e-4, atol=1e-5)
print("equal")
"""
MARKETS: dict[str, tuple[AgentConfig, str]] = {
    "equivariant": (PPOConfig(hidden=(8, 8), horizon=16), "portfolio"),
    "encoder": (PPOConfig(hidden=(8, 8), horizon=16, encoder="gru", lookback=6, encoder_size=4), "portfolio"),
    "soft": (SACConfig(hidden=(8, 8), learning_starts=8, batch_size=8), "portfolio"),
    "flat": (TD3Config(hidden=(8,), policy="mlp", learning_starts=8, batch_size=8), "portfolio"),
    "discrete": (DQNConfig(algorithm="d3qn", hidden=(8, 8), learning_starts=8, batch_size=8), "discrete"),
}


def trained_on_market(config: AgentConfig, kind: str) -> list[AgentSnapshot]:
    """Two agents after one iteration."""
    env = make_env(random_market(), EnvironmentConfig(kind=kind, envs=8, group=4, window=64), members=(0, 1))  # type: ignore[arg-type]
    learner = Learner(env, config, seed=3)
    learner.learn(learner.iteration_samples)
    return [learner.snapshot(p, id=f"agent{p}") for p in range(2)]


def write_case(folder: Path, inputs: dict[str, np.ndarray], expected: torch.Tensor) -> None:  # type: ignore[type-arg]
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]
    np.save(folder / "expected.npy", expected.numpy())


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Exported agents, each with inputs and the actions that finrl_pod takes on them."""
    root = tmp_path_factory.mktemp("exported")
    rng = np.random.default_rng(0)
    folders = []
    for name, (config, kind) in MARKETS.items():
        strategy = PolicyStrategy(trained_on_market(config, kind))
        (group,) = strategy.groups
        folder = root / name
        export_strategy(strategy, folder, symbols=[f"T{i}" for i in range(ASSETS)])
        bars = group.actor.spec.lookback if group.actor.spec.encoder != "none" else 1
        raw = rng.normal(0, 0.1, (bars, ASSETS, 2))
        raw[-1, 1] = np.nan
        raw[-1, 2] = 1e6  # clipped
        tradable = np.ones((bars, ASSETS), dtype=bool)
        tradable[-1, 1] = False
        account = rng.dirichlet(np.ones(1 + ASSETS))
        rows, mask = torch.from_numpy(normalise(raw, strategy.normaliser)), torch.from_numpy(tradable)
        window, known = (rows, mask) if bars > 1 else (rows[-1], mask[-1])
        with torch.no_grad():
            action = group.actor.action(
                group.params,
                window.expand(2, 1, *window.shape),
                torch.from_numpy(account).float().expand(2, 1, 1, -1),
                known.expand(2, 1, *known.shape),
            )
        write_case(folder, {"features": raw, "tradable": tradable, "account": account}, action.reshape(2, -1))
        folders.append(folder)
    run = root / "run"
    agent = agent_config("ppo", ("hidden=[8]", "horizon=16", "minibatches=2", "normalise=true"), steps=64, envs=2)
    train(TrainingConfig("gym:CartPole-v1", agent, steps=64, envs=2, members=2), run, evaluation=0)
    export_run(run, root / "rows")
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))
    write_case(root / "rows", {"observation": rows.numpy()}, load_agents(run).act(rows.expand(2, -1, -1)))
    return [*folders, root / "rows"]


def load_elsewhere(program: str, folders: list[Path]) -> str:
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return done.stdout.strip() or done.stderr


def test_torch_export_is_loaded_without_finrl_pod(cases: list[Path]) -> None:
    assert load_elsewhere(LOAD_TORCH, cases) == "equal"
    described = json.loads((cases[0] / "agent.json").read_text())
    assert described["feature_names"] == ["return_1", "return_5"]
    assert described["inputs"] == {"features": [1, 6, 2], "tradable": [1, 6], "account": [7]}
    assert described["output"]["shape"] == ["members", 7]


def test_onnx_is_run_without_finrl_pod_and_torch(cases: list[Path], tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    for folder, (config, kind) in zip(cases, MARKETS.values(), strict=False):
        export_strategy(PolicyStrategy(trained_on_market(config, kind)), folder, ("onnx",))
    assert load_elsewhere(LOAD_ONNX, cases[: len(MARKETS)]) == "equal"


def test_members_of_several_algorithms_stand_in_their_order(tmp_path: Path) -> None:
    one, two = (trained_on_market(*MARKETS[name]) for name in ("equivariant", "soft"))
    strategy = PolicyStrategy([one[0], two[0], dataclasses.replace(one[1], id="third")])
    export_strategy(strategy, tmp_path)
    program = torch.export.load(tmp_path / "agent.pt2").module()
    inputs = (torch.zeros(1, ASSETS, 2, dtype=torch.float64), torch.ones(1, ASSETS, dtype=torch.bool))
    account = torch.full((1 + ASSETS,), 1 / (1 + ASSETS), dtype=torch.float64)
    together = program(*inputs, account)
    for i, snapshot in enumerate((one[0], two[0], one[1])):
        export_strategy(PolicyStrategy([snapshot]), tmp_path / str(i))
        alone = torch.export.load(tmp_path / str(i) / "agent.pt2").module()(*inputs, account)
        torch.testing.assert_close(together[i], alone[0])


ARM = """
import gymnasium, numpy as np


class Arm(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
    action_space = gymnasium.spaces.Box(np.float32([-0.2, 0]), np.float32([0.2, 4]), (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        taken.append(np.array(action))
        return self.np_random.normal(size=3).astype(np.float32), float(np.sum(action)), False, self.t >= 20, {}


class Parts(Arm):
    action_space = gymnasium.spaces.MultiDiscrete([3, 2], start=[1, 5])


class Start(Arm):
    action_space = gymnasium.spaces.Discrete(3, start=4)


taken = []
"""


FIRST = {"Parts": ([3, 2], [1, 5]), "Start": ([3], [4])}


@pytest.mark.parametrize("name", ["Arm", *FIRST])
def test_exported_actions_are_those_that_the_environment_takes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("arm.py").write_text(ARM)
    settings = ("hidden=[8]", "horizon=16", "minibatches=2", "learning_rate=0.1")  # actions leave [-1, 1]
    agent = agent_config("ppo", settings, steps=640, envs=1)
    run = tmp_path / "run"
    train(TrainingConfig(f"arm.py:{name}", agent, steps=640), run, evaluation=0)
    described = json.loads(export_run(run, tmp_path / "out")[-1].read_text())
    if importlib.util.find_spec("onnxscript") is not None:
        export_run(run, tmp_path / "out", ("onnx",))
    program = torch.export.load(tmp_path / "out" / "agent.pt2").module()
    agents = load_agents(run)
    env = user_object(agents.config.env, "env")()
    taken = user_object(agents.config.env.replace(name, "taken"), "list")
    lane = GymnasiumVecEnv(agents.config.env)
    rows = [lane.reset(0)[0]]
    taken.clear()
    for _ in range(10):
        rows.append(lane.step(agents.act(rows[-1][None]))[0][0])
    exported = program(torch.cat(rows[:-1])[:, : described["inputs"]["observation"][-1]])[0]
    np.testing.assert_allclose(exported.numpy().squeeze(), np.stack(taken).squeeze(), rtol=1e-5, atol=1e-6)
    assert all(env.action_space.contains(x) for x in taken)
    output = described["output"]
    if name == "Arm":
        assert (output["low"], output["high"]) == (pytest.approx([-0.2, 0]), [pytest.approx(0.2), 4])
    else:
        assert (output["choices"], output["first"]) == FIRST[name]


def test_agents_of_one_market_act_on_own_observations_within_own_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = agent_config("ppo", ("hidden=[8]", "horizon=16", "minibatches=2"), steps=64, envs=1)
    name = "tests.envs.gymnasium_pool.parallel_envs:make"
    for shared in (False, True):
        run = tmp_path / f"run{shared}"
        train(TrainingConfig(name, agent, steps=64, many="mappo", is_shared=shared), run, evaluation=0)
        described = json.loads(export_run(run, tmp_path / "out")[-1].read_text())
        assert described["agents"] == ["b", "a", "c"]
        assert described["inputs"]["observation"][:2] == ["agents", "E"]
        low, high = (torch.tensor(described["output"][x]).unsqueeze(1) for x in ("low", "high"))
        agents = load_agents(run)
        own = described["inputs"]["observation"][2]
        assert own < agents.spec.features
        rows = torch.randn(3, 5, own, generator=torch.Generator().manual_seed(1))
        full = torch.cat([rows, torch.randn(3, 5, agents.spec.features - own)], -1)
        found = torch.export.load(tmp_path / "out" / "agent.pt2").module()(rows)
        action = agents.act(full.reshape(agents.count, -1, agents.spec.features)).reshape(3, 5, -1)
        torch.testing.assert_close(found, low + (action.clamp(-1, 1) + 1) / 2 * (high - low))
