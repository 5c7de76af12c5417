"""The environments that docs/environments.md builds keep the contract and are what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from finrl_pod_envs.custom.contract import check_env
from finrl_pod_envs.custom.loader import load_env

PAGE = Path(__file__).parent.parent / "docs" / "environments.md"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The page's Python files by name; a block of a file starts with a comment that names it."""
    found = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        if name := re.match(r"# (\w+\.py)\n", block):
            found[name[1]] = tmp_path / name[1]
            found[name[1]].write_text(block)
    return found


@pytest.mark.parametrize(("file", "name"), [("cartpole.py", "CartPole"), ("pairs.py", "Pairs")])
def test_tutorial_environments_keep_the_contract(files: dict[str, Path], file: str, name: str) -> None:
    reference = f"{files[file]}:{name}"
    assert check_env(lambda envs, members: load_env(reference, envs=envs, members=members)) == []


def test_cartpole_moves_as_that_of_gymnasium(files: dict[str, Path]) -> None:
    env: Any = load_env(f"{files['cartpole.py']}:CartPole", envs=1)
    theirs: Any = gymnasium.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    theirs.state = env.reset(0)[0, 0].double().numpy()
    noise = torch.Generator().manual_seed(1)
    for _ in range(200):
        action = int(torch.randint(2, (), generator=noise))
        out = env.step(torch.tensor([[[action]]]))
        row, _, terminated, _, _ = theirs.step(action)
        np.testing.assert_allclose(out.final_observation[0, 0].numpy(), row, rtol=1e-4, atol=1e-5)
        assert bool(out.terminated) == terminated
        if terminated:
            theirs.reset(seed=0)
            theirs.state = out.observation[0, 0].double().numpy()


def test_rewards_of_the_pair_are_the_growth_of_half_in_each_leg_less_costs(files: dict[str, Path]) -> None:
    env: Any = load_env(f"{files['pairs.py']}:Pairs", envs=3)
    env.reset(2)
    start = env.bar.clone()
    targets = torch.tensor([0.5, 0.5, -1.0, 2.0])
    total = sum(env.step(target.expand(1, 3, 1)).reward for target in targets)
    held = torch.tensor([0.5, 0.5, -1.0, 1.0])
    growth = sum(0.5 * float(held[i]) * env.change[start + 1 + i] for i in range(4))
    traded = 0.5 + 0.0 + 1.5 + 2.0
    torch.testing.assert_close(total, 100 * (growth - 0.0005 * 2 * traded))
