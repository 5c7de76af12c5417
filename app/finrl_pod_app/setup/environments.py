"""Environments of users' own: writing a new one from the template, and checking one."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from finrl_pod_envs.custom import template
from finrl_pod_envs.custom.contract import MAX_STEPS, Fault, check_env
from finrl_pod_envs.custom.loader import load_env

from finrl_pod.errors import ConfigError
from finrl_pod.files import write_new_files

TEMPLATE_CLASS, TEMPLATE_WORD = "Drift", "drift"
TEST = '''"""NAME keeps the contract of environments."""

from pathlib import Path

from finrl_pod_envs.custom.contract import check_env
from finrl_pod_envs.custom.loader import load_env

FILE = Path(__file__).with_name("WORD.py")


def test_NAME_keeps_the_contract():
    assert check_env(lambda envs, members: load_env(f"{FILE}:NAME", envs=envs, members=members)) == []
'''


def write_environment(name: str, folder: Path = Path()) -> tuple[Path, Path]:
    """Write an environment of this class name and its test; returns the paths of both.

    Raises ConfigError for a name that is no class name, for files that exist, and if they cannot be written.
    """
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"NAME must be a class name in capitals and letters, such as PairsTrading, got {name!r}")
    word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    source = Path(template.__file__).read_text(encoding="utf-8")
    source = re.sub(rf"\b{TEMPLATE_CLASS}\b", name, source).replace(f'"{TEMPLATE_WORD}"', f'"{word}"')
    test = TEST.replace("test_NAME", f"test_{word}").replace("NAME", name).replace("WORD", word)
    texts = {folder / f"{word}.py": source, folder / f"test_{word}.py": test}
    write_new_files(texts)
    first, second = texts
    return first, second


def check_environment(reference: str, steps: int | None = None, members: int = 2) -> list[Fault]:
    """Faults of the environment file.py:Class, see `check_env`. Raises as `load_env`."""
    load_env(reference, envs=1)  # a missing file or class is bad input, not a fault
    return check_env(
        lambda envs, ids: load_env(reference, envs=envs, members=ids),
        members=[5 * i for i in range(members)],
        max_steps=steps or MAX_STEPS,
    )
