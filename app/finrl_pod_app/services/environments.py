"""Check of environments of users' own."""

from __future__ import annotations

from finrl_pod_envs.custom.contract import MAX_STEPS, Fault, check_env
from finrl_pod_envs.custom.loader import load_env


def check_environment(reference: str, steps: int | None = None, members: int = 2) -> list[Fault]:
    """Faults of the environment file.py:Class, see `check_env`. Raises as `load_env`."""
    load_env(reference, envs=1)  # a missing file or class is bad input, not a fault
    return check_env(
        lambda envs, ids: load_env(reference, envs=envs, members=ids),
        members=[5 * i for i in range(members)],
        max_steps=steps or MAX_STEPS,
    )
