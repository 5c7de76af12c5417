"""Files of a registry, reached through fsspec: a local folder, or an object store such as S3.

Every write replaces one whole file atomically, so a reader finds the old file, the new one or none, also after a kill.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec.core import split_protocol, url_to_fs

from finrl_pod.errors import RegistryError, SetupError
from finrl_pod.files import replace_file

LOCAL = ("file", "local")
# Stores whose uploads are atomic and that can refuse to overwrite. Options are passed to their fsspec implementation.
REMOTE: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 5, "read_timeout": 15, "retries": {"max_attempts": 2}}},
    "gs": {},
    "gcs": {},
    "abfs": {},
    "az": {},
}
EXTRAS = {"s3": "finrl-pod[s3]", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


class ObjectStore:
    """Files by key, such as "objects/ab/abcd". Methods raise RegistryError for an unusable store."""

    def __init__(self, address: str) -> None:
        """address: a folder, or a URL such as s3://bucket/folder.

        Raises RegistryError for an unsupported protocol, SetupError if its package is not installed.
        """
        protocol, path = split_protocol(address)
        self.address = address.rstrip("/") or "/"
        self._folder: Path | None = None
        if protocol is None or protocol in LOCAL:
            self._folder = Path(path).expanduser().absolute()
            self.address = str(self._folder)
            return
        if protocol not in REMOTE:
            protocols = ", ".join(f"{name}://" for name in REMOTE)
            raise RegistryError(f"a registry is a folder or an address that starts with {protocols}, got {address!r}")
        try:
            self._remote, self._root = url_to_fs(self.address, use_listings_cache=False, **REMOTE[protocol])
        except ImportError:
            raise SetupError(f"the registry {address} needs a package: pip install '{EXTRAS[protocol]}'") from None
        except ValueError as error:
            raise RegistryError(f"the registry address {address!r} is invalid: {error}") from None

    # ------------------------------------------------------------------ reading

    def read(self, key: str) -> bytes | None:
        """Contents of a file, or None if there is none."""
        with self._registry_errors("read"), contextlib.suppress(FileNotFoundError):
            if self._folder is not None:
                return (self._folder / key).read_bytes()
            return bytes(self._remote.cat_file(self._path(key)))
        return None

    def keys(self, folder: str) -> list[str]:
        """Keys of all files below a folder, sorted; empty if there is no such folder."""
        with self._registry_errors("list"):
            if self._folder is not None:
                files = (self._folder / folder).rglob("*")
                return sorted(str(file.relative_to(self._folder)) for file in files if file.is_file())
            prefix = len(self._root) + 1
            with contextlib.suppress(FileNotFoundError):  # the bucket is missing
                return sorted(path[prefix:] for path in self._remote.find(self._path(folder)))
        return []

    def modification_time(self, key: str) -> datetime | None:
        """When a file was last written, or None if there is none."""
        with self._registry_errors("read"), contextlib.suppress(FileNotFoundError):
            if self._folder is not None:
                return datetime.fromtimestamp((self._folder / key).stat().st_mtime, UTC)
            timestamp: datetime = self._remote.modified(self._path(key))
            return timestamp.astimezone(UTC)
        return None

    # ------------------------------------------------------------------ writing

    def write(self, key: str, data: bytes) -> None:
        with self._registry_errors("write to"):
            if self._folder is not None:
                path = self._folder / key
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, data)
            else:
                self._remote.pipe_file(self._path(key), data)

    def create(self, key: str, data: bytes) -> bool:
        """Write a new file; False, with nothing written, if there is one already."""
        with self._registry_errors("write to"), contextlib.suppress(FileExistsError):
            if self._folder is not None:
                _create_file(self._folder / key, data)
            else:
                self._remote.pipe_file(self._path(key), data, mode="create")
            return True
        return False

    def delete(self, key: str) -> None:
        """Delete a file; no error if there is none."""
        with self._registry_errors("write to"), contextlib.suppress(FileNotFoundError):
            if self._folder is not None:
                (self._folder / key).unlink()
            else:
                self._remote.rm_file(self._path(key))

    # ------------------------------------------------------------------ helpers

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextlib.contextmanager
    def _registry_errors(self, verb: str) -> Iterator[None]:
        """Raise RegistryError for every error of the store."""
        try:
            yield
        except Exception as error:  # each implementation raises the errors of its libraries
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise RegistryError(
                f"cannot {verb} the registry {self.address}: {reason}; check the address and its permissions"
            ) from error


def _create_file(path: Path, data: bytes) -> None:
    """Write a new file atomically. Raises FileExistsError if there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        replace_file(temporary, data)
        os.link(temporary, path)  # unlike a rename it never replaces a file
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
