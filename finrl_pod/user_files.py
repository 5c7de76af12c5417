"""Objects from users' own Python files, named as `file.py:Name`: strategies and rewards.

A file is imported and runs with the rights of the user who started the program: it is trusted code, without a sandbox.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from finrl_pod.errors import InputError


def is_file_reference(text: str) -> bool:
    """Whether `text` has the form file.py:Name."""
    path, _, name = text.rpartition(":")
    return path.endswith(".py") and bool(name)


def import_user_file(path: Path, purpose: str) -> Any:
    """The module of a file. purpose: what it is needed for, such as "the strategy mine.py:Mine".

    Raises InputError for a file that is missing or cannot be imported.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path} for {purpose}; write it as path/to/file.py:Name")
    spec = importlib.util.spec_from_file_location(f"finrl_pod_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be imported as Python; write it as path/to/file.py:Name")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    try:
        with stdout_to_stderr():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} could not be imported: {error_text(error)}") from error
    return module


def stdout_to_stderr() -> contextlib.AbstractContextManager[Any]:
    """Redirect what a user's code prints: standard output may have to be a single JSON object."""
    return contextlib.redirect_stdout(sys.stderr)


def error_text(error: BaseException) -> str:
    """Type and message of an error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
