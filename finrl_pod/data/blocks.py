"""Functions of tables [T, N] applied to blocks of columns or rows, so that temporary arrays stay small."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finrl_pod.memory import release_mapped_pages

BLOCK_CELLS = 2**18  # of a table that is worked on at a time: 2 MB for each temporary array of float64
BLOCK_COLUMNS = 8  # a cache line of float64, so that long tables are read few times

Table = NDArray[Any]


def column_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of the columns of a table [T, N] of at most `BLOCK_CELLS` cells each, or of `BLOCK_COLUMNS`."""
    bars, columns = shape[:2]
    step = max(BLOCK_COLUMNS, BLOCK_CELLS // max(bars, 1))
    return (slice(first, min(first + step, columns)) for first in range(0, columns, step))


def row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of the rows of a table [T, ...] of at most `BLOCK_CELLS` cells each, or of one row."""
    bars = shape[0]
    step = max(1, BLOCK_CELLS // max(math.prod(shape[1:]), 1))
    return (slice(first, min(first + step, bars)) for first in range(0, bars, step))


def copy_of_feature(table: Table, i: int) -> Table:
    """Feature i [T, N] of a table [T, N, F] that may be mapped: its other pages are released as they are read."""
    values = np.empty(table.shape[:2], dtype=table.dtype)
    for rows in row_blocks(table.shape):
        values[rows] = table[rows, :, i]
        release_mapped_pages()
    return values


def over_columns(function: Callable[..., Table], *tables: Table) -> Table:
    """function(*tables) for a function of tables [T, N] to one of that shape that computes each column by itself.

    It is called with single columns of a table of more than `BLOCK_CELLS` cells in `BLOCK_COLUMNS` columns: its
    temporary arrays stay in the cache, and are not returned to the system and cleared by it again.
    """
    blocks = [(slice(None), columns) for columns in column_blocks(tables[0].shape)]
    if len(tables[0]) * BLOCK_COLUMNS <= BLOCK_CELLS:
        return _over_blocks(function, tables, blocks)
    buffers = [np.empty((BLOCK_COLUMNS, len(table)), dtype=table.dtype) for table in tables]
    results: Table | None = None

    def of_columns(*block_tables: Table) -> Table:
        nonlocal results
        count = block_tables[0].shape[1]
        for buffer, table in zip(buffers, block_tables, strict=True):
            buffer[:count] = table.T
        for i in range(count):
            values = function(*(buffer[i, :, None] for buffer in buffers))[:, 0]
            if results is None:
                results = np.empty((BLOCK_COLUMNS, *values.shape), dtype=values.dtype)
            results[i] = values
        assert results is not None
        return results[:count].swapaxes(0, 1)

    return np.ascontiguousarray(_over_blocks(of_columns, tables, blocks))


def over_rows(function: Callable[..., Table], *tables: Table) -> Table:
    """function(*tables) for a function of tables [T, ...] to one [T, K] that computes each row by itself."""
    return _over_blocks(function, tables, [(rows,) for rows in row_blocks(tables[0].shape)])


def _over_blocks(
    function: Callable[..., Table], tables: tuple[Table, ...], blocks: Sequence[tuple[slice, ...]]
) -> Table:
    if len(blocks) <= 1:
        return function(*tables)
    result: Table | None = None
    axis = len(blocks[0]) - 1
    for block in blocks:
        block_result = function(*(table[block] for table in tables))
        if result is None:
            shape = (*block_result.shape[:axis], tables[0].shape[axis], *block_result.shape[axis + 1 :])
            result = np.empty(shape, dtype=block_result.dtype)
        result[block] = block_result
    assert result is not None
    return result
