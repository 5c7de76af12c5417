"""Hypothesis strategies that damage the bytes of a valid file."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

# What parsers stumble over: signs of formats, limits of numbers, encodings, and long or nested values.
PIECES = (
    *(b"", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r", b",", b'"', b"'", b"[", b"]", b"{", b"}", b"=", b"#"),
    *(b"nan", b"inf", b"-inf", b"-0", b"1e999", b"1e-999", b"9223372036854775808", b"-1", b"0x10", b"true", b"null"),
    *(
        b"2262-04-12",
        b"0000-00-00",
        b"1970-01-01T25:00",
        b"../../etc/passwd",
        b"\xf0\x9f\x93\x88",
        b"[" * 500,
        b"9" * 400,
    ),
)


@dataclass(frozen=True)
class Edit:
    """Replace `count` bytes from a relative position (0 to 1) on by a piece."""

    position: float
    count: int
    piece: bytes


def edits() -> st.SearchStrategy[list[Edit]]:
    """One to four edits."""
    piece = st.one_of(st.sampled_from(PIECES), st.binary(max_size=12))
    counts = st.one_of(st.integers(0, 8), st.sampled_from((64, 10**6)))
    return st.lists(st.builds(Edit, st.floats(0, 1), counts, piece), min_size=1, max_size=4)


def damaged(data: bytes, changes: list[Edit]) -> bytes:
    """The bytes after the edits, one after the other."""
    for change in changes:
        start = int(change.position * len(data))
        data = data[:start] + change.piece + data[start + change.count :]
    return data
