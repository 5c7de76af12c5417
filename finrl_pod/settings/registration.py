"""Check shared by the decorators that register features, policies and algorithms."""

from __future__ import annotations

from finrl_pod.errors import InputError


def check_name(what: str, name: object) -> None:
    """Raises InputError for a name to register that is not a text, such as the function of a bare decorator."""
    if not isinstance(name, str) or not name.strip():
        example = getattr(name, "__name__", "mine")
        raise InputError(f'the {what} needs a name in quotes, got {name!r}: write @fp.register_{what}("{example}")')
