"""Atomic file writes (temporary file, then rename), plain JSON values, in which NaN and infinity become null, and the
folder of stored prices."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.user_files import kept_files, kept_neighbours

MAX_JSON_BYTES = 256_000_000
FREE_BYTES = 2**24  # that a folder must have before work starts whose results it takes
ROOT_VARIABLE = "FINRL_POD_DATA"  # folder of the stored prices, if they lie elsewhere
HOME_VARIABLE = "FINRL_POD_HOME"  # folder of the registries and the prices


def home() -> Path:
    """The data folder of the user: FINRL_POD_HOME, else the default of the platform."""
    if folder := os.environ.get(HOME_VARIABLE):
        return Path(folder)
    import platformdirs

    return Path(platformdirs.user_data_dir("finrl-pod", appauthor=False))


def default_root() -> Path:
    """Folder of stored prices where none is given."""
    set_root = os.environ.get(ROOT_VARIABLE)
    return Path(set_root) if set_root else home() / "data"


def reserve_room(folder: Path, size: int = FREE_BYTES) -> None:
    """Check before a long task that a folder, or the closest parent that exists, takes `size` more bytes.

    The bytes are reserved for a moment in a file without a name: a full disk, a quota, a read-only disk and missing
    permission are all noticed. Raises OSError with the name of the folder.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # this kind of disk reserves nothing
            raise OSError(error.errno, error.strerror, str(existing)) from None


def replace_file(path: Path, data: bytes | memoryview, mode: int = 0o644, *, durable: bool = True) -> None:
    """Replace `path` by `data` atomically, or leave the existing file untouched.

    mode: permission bits of the new file; by default readable by all users who can read the folder.
    durable: wait until the data is on disk, so that a power failure leaves the old or the new file.
    Raises OSError; the folder must exist.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file atomically and create its folder. Raises RunError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; name another folder") from None
    return path


def write_kept_files(folder: Path, values: Any) -> None:
    """Write the user files that plain values refer to and their imports, for `user_files.keep_folder`."""
    for name, text in {**kept_neighbours(values), **kept_files(values)}.items():
        write_bytes(folder / name, text.encode())


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text atomically; see `write_bytes`."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, values: Mapping[str, Any], *, indent: int = 1) -> Path:
    """Write a JSON object atomically, keys sorted. Raises ValueError for NaN and infinity (see `to_plain`)."""
    text = json.dumps(values, sort_keys=True, indent=indent, allow_nan=False, ensure_ascii=False)
    return write_text(path, text + "\n")


def read_regular(path: Path, max_bytes: int = MAX_JSON_BYTES, *, follow_links: bool = True) -> bytes:
    """The contents of a regular file of at most `max_bytes`.

    Pipes and devices are refused, since reading them may never end, and with `follow_links` False a symbolic link in
    place of the file. Raises RunError, also for a missing or unreadable file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follow_links else getattr(os, "O_NOFOLLOW", 0))
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        raise RunError(f"{path} is missing; the run directory is incomplete") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
            kind = "a symbolic link" if error.errno == errno.ELOOP else "not a regular file"
            raise RunError(f"{path} is damaged: it is {kind}; restore it or start a new run") from None
        raise RunError(f"cannot read {path}: {error.strerror}") from None
    try:
        file_status = os.fstat(handle)
        if not stat.S_ISREG(file_status.st_mode):
            raise RunError(f"{path} is damaged: it is not a regular file; restore it or start a new run")
        if file_status.st_size > max_bytes:
            raise RunError(f"{path} is damaged: it has {file_status.st_size:,} bytes; at most {max_bytes:,} are read")
        with open(handle, "rb", closefd=False) as file:
            return file.read(max_bytes)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None
    finally:
        os.close(handle)


def read_json(
    path: Path, *, max_bytes: int = MAX_JSON_BYTES, follow_links: bool = True, max_digits: int | None = None
) -> dict[str, Any]:
    """Read a JSON object. Raises RunError if the file cannot be read (see `read_regular`) or is not a JSON object.

    max_digits: limit for an integer; longer ones are refused.
    """

    def integer(text: str) -> int:
        if max_digits is not None and len(text.lstrip("-")) > max_digits:
            raise RunError(f"{path} is damaged: it has a number of more than {max_digits} digits; restore it")
        return int(text)

    try:
        values = json.loads(read_regular(path, max_bytes, follow_links=follow_links), parse_int=integer)
    except (ValueError, RecursionError):
        raise RunError(f"{path} is damaged: it is not JSON; restore it or start a new run") from None
    if not isinstance(values, dict):
        raise RunError(f"{path} is damaged: it is not a JSON object; restore it or start a new run")
    return values


def to_plain(value: Any) -> Any:
    """Convert a value to what JSON can hold: arrays and tuples to lists, dates to ISO text, NaN and infinity to None.

    Mapping keys become text. Raises TypeError for any other type.
    """
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    numpy = sys.modules.get("numpy")  # not imported here: commands that read a few files start without it
    if numpy is not None and isinstance(value, numpy.datetime64):
        return str(value.astype("datetime64[D]"))
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return to_plain(value.tolist())
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"cannot convert {type(value).__name__} to plain JSON values")


def record_values(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values, encoded by pydantic: decimals as text, tuples as lists."""
    from pydantic import TypeAdapter

    return TypeAdapter(type(record)).dump_python(record, mode="json")  # type: ignore[no-any-return]


def write_new_files(texts: Mapping[Path, str]) -> None:
    """Write files that do not exist yet. Raises ConfigError, before anything is written, if one does."""
    for path in texts:
        if path.exists():
            raise ConfigError(f"{path} already exists; choose another name or remove it")
    for path, text in texts.items():
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def other_folder(path: Path) -> str | None:
    """A sentence on what a path is that is no run of a tournament, and the command for it; None if it is unknown."""
    if path.is_file():
        return f"{path} is a file; name the folder of a run, the one given as --out"
    if not (path / "config.json").is_file():
        return None
    values = read_json(path / "config.json")
    if isinstance(values, dict) and isinstance(values.get("market"), dict):
        return f"{path} is a run of train --market, without prices; its scores are in {path / 'result.json'}"
    if isinstance(values, dict) and isinstance(values.get("env"), str):
        return (
            f"{path} is a run of train --env on {values['env']}, without prices; test its agents with finrl-pod "
            f"evaluate {shlex.quote(str(path))}, or watch them with finrl-pod play {shlex.quote(str(path))}"
        )
    return None
