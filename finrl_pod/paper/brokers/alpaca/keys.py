"""The account's keys: out of the environment, into request headers, and nowhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from finrl_pod.errors import SetupError

KEY, SECRET = "APCA_API_KEY_ID", "APCA_API_SECRET_KEY"
_MASK = "***"


@dataclass(frozen=True)
class Keys:
    """Neither is ever shown: not in a repr, and `strike` takes them out of any text."""

    key: str = field(repr=False)
    secret: str = field(repr=False)

    def strike(self, text: str) -> str:
        """The text without the keys."""
        return text.replace(self.secret, _MASK).replace(self.key, _MASK)


def keys_from_environment() -> Keys:
    """Raises SetupError naming the variable that is missing."""
    values = {name: os.environ.get(name, "").strip() for name in (KEY, SECRET)}
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise SetupError(f"Alpaca needs the environment to hold {' and '.join(missing)}: set them to your API keys")
    return Keys(values[KEY], values[SECRET])
