"""Tables of a market: in memory, or above `MAPPED_BYTES` in files that are mapped into it.

The pages of a mapped table are read from its file when they are used, and the system may take them back at any time:
a table may be larger than the memory. Its file is in the store folder and has no name: no other process sees it
half written, and it is gone with its last user, even one that was killed.

torch is imported only by the functions that make tensors: the store needs none and uses this module too.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from finrl_pod.errors import ConfigError, DataError
from finrl_pod.files import default_root
from finrl_pod.memory import MIB, release_mapped_pages, release_with_freed_memory

if TYPE_CHECKING:
    import torch
    from torch.utils.weak import WeakTensorKeyDictionary

    from finrl_pod.types import Tensor

MAPPED_VARIABLE = "FINRL_POD_MAPPED_MIB"  # size from which tables are mapped, in MiB
MAPPED_BYTES = 8 * MIB  # its default
BLOCK_BYTES = 4 * MIB  # of a table that is computed at a time
FOLDER = ".tables"  # of the store
Derived = TypeVar("Derived")
_derived: WeakTensorKeyDictionary | None = None  # values of `once` by table


def new_table(shape: Sequence[int], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """A new table of this shape, not initialised; a mapped one if it is larger than `mapped_bytes`.

    Call `release_mapped_pages` now and then while a mapped one is filled: written pages stay in the file cache.

    Raises DataError if the disk has too little space for it.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= mapped_bytes():
        return np.empty(shape, dtype=dtype)
    folder = default_root() / FOLDER
    try:
        mapping = _mapped_file(folder, size)
    except OSError as error:
        raise DataError(
            f"a table of {size / 1e9:,.1f} GB does not fit in {folder}: {error.strerror}; free space there, set "
            f"FINRL_POD_DATA to another folder, or {MAPPED_VARIABLE} to more MiB to keep tables in memory"
        ) from None
    return np.frombuffer(mapping, dtype=dtype).reshape(shape)


def stored(values: NDArray[Any]) -> NDArray[Any]:
    """The same values [T, ...] as a mapped table if they are larger than `mapped_bytes`, else unchanged."""
    if values.nbytes <= mapped_bytes():
        return values
    import torch

    return np.asarray(rows_table(lambda rows: torch.from_numpy(values[rows]), torch.from_numpy(values)).numpy())


def in_dtype(table: Tensor, dtype: torch.dtype) -> Tensor:
    """The table [T, ...] in a dtype: itself, or one that is made once."""
    if table.dtype == dtype:
        return table
    return once(table, dtype, lambda: rows_table(lambda rows: table[rows], table, dtype))


def once(table: Tensor, key: Hashable, make: Callable[[], Derived]) -> Derived:
    """What `make` computes of a table alone, computed once while the table is in use, and again if it was changed.

    key: what is computed, with all numbers that it depends on besides.
    """
    global _derived
    if _derived is None:
        from torch.utils.weak import WeakTensorKeyDictionary

        _derived = WeakTensorKeyDictionary()
    if table not in _derived:
        _derived[table] = {}
    values: dict[Hashable, tuple[int, Any]] = _derived[table]
    version = table._version  # counts the changes of a tensor in place
    if key not in values or values[key][0] != version:
        values[key] = (version, make())
    result: Derived = values[key][1]
    return result


def rows_table(of_rows: Callable[[slice], Tensor], template: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A table of of_rows(rows) with the shape and the device of `template` [T, ...].

    dtype: dtype of the template if None. Rows of a table of more than `BLOCK_BYTES` on the CPU are computed block by
    block, so that temporary tensors stay small.
    """
    dtype = template.dtype if dtype is None else dtype
    size = template.numel() * dtype.itemsize
    if template.device.type != "cpu" or size <= BLOCK_BYTES:
        return of_rows(slice(0, len(template))).to(dtype)
    import torch

    result = torch.from_numpy(new_table(template.shape, torch.empty(0, dtype=dtype).numpy().dtype))
    for rows in _blocks(len(template), size):
        result[rows] = of_rows(rows)
    return result


def has_nan(table: Tensor) -> bool:
    """Whether a table [T, ...] has a NaN."""
    if table.device.type != "cpu":
        return bool(table.isnan().any())
    blocks = _blocks(len(table), table.nbytes)
    return once(table, "has NaN", lambda: any(bool(table[rows].isnan().any()) for rows in blocks))


def _blocks(length: int, size: int) -> Iterator[slice]:
    """Rows of at most `BLOCK_BYTES` of a table of `size` bytes; the pages of mapped tables are released after each."""
    step = max(1, BLOCK_BYTES * length // max(size, 1))
    for first in range(0, length, step):
        yield slice(first, min(first + step, length))
        release_mapped_pages()


def mapped_bytes() -> int:
    """Size in bytes above which tables are mapped. Raises ConfigError for a variable that is not a number of MiB."""
    text = os.environ.get(MAPPED_VARIABLE, "")
    if not text:
        return MAPPED_BYTES
    if not text.isdecimal():
        raise ConfigError(f"{MAPPED_VARIABLE} must be a number of MiB, got {text!r}; remove it, or set it to 1024")
    return int(text) * MIB


def _mapped_file(folder: Path, size: int) -> mmap.mmap:
    """A shared mapping of a new file without a name. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, path = tempfile.mkstemp(dir=folder)
    try:
        os.unlink(path)
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and a signal at a later write
            os.posix_fallocate(handle, 0, size)
        else:
            os.ftruncate(handle, size)
        mapping = mmap.mmap(handle, size)
        release_with_freed_memory(mapping)
        return mapping
    finally:
        os.close(handle)
