"""Environments from users' files."""

from __future__ import annotations

from pathlib import Path

import pytest
from finrl_pod_envs.custom import template
from finrl_pod_envs.custom.loader import load_env, load_env_class, source_sha256

from finrl_pod.errors import ConfigError, FinrlPodError, InputError, RunError
from finrl_pod.protocols import ResumableVecEnv

FILE = Path(template.__file__)


def test_class_is_made_with_envs_members_and_device() -> None:
    env = load_env(f"{FILE}:Drift", envs=3, members=(1, 4))
    assert (env.members, env.envs, env.member_ids) == (2, 3, (1, 4))
    assert isinstance(env, ResumableVecEnv)


def test_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text(FILE.read_text())
    (tmp_path / "mine.py").write_text("from neighbour_of_mine import Drift\n\nclass Mine(Drift): pass\n")
    assert load_env(f"{tmp_path / 'mine.py'}:Mine", envs=2).envs == 2


@pytest.mark.parametrize(
    ("reference", "error", "message"),
    [
        ("mine.txt:Mine", InputError, "there is no module mine.txt"),
        ("mine", ConfigError, r"named path/to/file.py:Class or package.module:Class, got 'mine'"),
        ("absent.py:Mine", InputError, r"there is no file absent.py"),
        (f"{FILE}:Dirft", InputError, r"has no Dirft; it defines .*Drift"),
    ],
)
def test_unusable_references_are_refused(reference: str, error: type[FinrlPodError], message: str) -> None:
    with pytest.raises(error, match=message):
        load_env_class(reference)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("class Mine: pass", RunError, r"cannot be made as Mine\(envs=2, members=\(0,\), device=...\): TypeError"),
        (
            "class Mine:\n    def __init__(self, **terms): pass",
            ConfigError,
            "has no members; `finrl-pod new environment NAME` writes a working one",
        ),
        (
            "from finrl_pod_envs.custom.template import Drift\n\nclass Mine(Drift):\n    action_kind = 'softmax'",
            ConfigError,
            "action_kind of .* must be direct or discrete, got 'softmax'",
        ),
        (
            "from finrl_pod_envs.custom.template import Drift\n\nclass Mine(Drift):\n"
            "    def __init__(self, **terms):\n        super().__init__(envs=7)",
            ConfigError,
            "has members=1 and envs=7 after it was asked for 1 and 2",
        ),
    ],
)
def test_unusable_classes_are_refused(tmp_path: Path, body: str, error: type[FinrlPodError], message: str) -> None:
    (tmp_path / "mine.py").write_text(body)
    with pytest.raises(error, match=message):
        load_env(f"{tmp_path / 'mine.py'}:Mine", envs=2)


def test_hash_is_that_of_the_file(tmp_path: Path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text("x")
    second.write_text("x")
    assert source_sha256(f"{first}:A") == source_sha256(f"{second}:B") != source_sha256(f"{FILE}:Drift")
