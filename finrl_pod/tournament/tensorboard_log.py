"""Learning curves as TensorBoard event files: one run per slot, one file per generation, each written atomically.

A file is a sequence of TFRecords: length (uint64), its masked CRC-32C (uint32), an Event message of event.proto in
TensorFlow, and the masked CRC-32C of the message. They are written here, because the tensorboard package that reads
them brings a web server and gRPC with it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from finrl_pod.errors import RunError
from finrl_pod.files import replace_file
from finrl_pod.tournament.learning_curves import LearningCurves

_CASTAGNOLI = 0x82F63B78  # polynomial of CRC-32C, reversed
_MASK = 0xA282EAD8
# Keys of protocol buffers: field number times 8, plus 0 for an integer, 1 for 8 bytes, 2 for a length, 5 for 4 bytes.
_WALL_TIME = b"\x09"
_STEP = b"\x10"
_FILE_VERSION = b"\x1a"
_SUMMARY = b"\x2a"  # of Event
_VALUE = b"\x0a"
_TAG = b"\x0a"
_SIMPLE_VALUE = b"\x15"  # of Summary and of Summary.Value


def write(folder: Path, generation: int, curves: LearningCurves) -> None:
    """Write `folder`/slot-SS/events.out.tfevents.GGGG for each slot; writing a generation again replaces its files.

    None is omitted. The step of a scalar is the number of samples of its agent, so a replaced slot starts a new curve.
    Raises RunError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for p, slot in enumerate(curves.slots):
            records = [_file_header()]
            for row in curves.rows:
                samples = row["samples"][p]
                if samples is None:  # a row of another cohort
                    continue
                columns = {name: column[p] for name, column in row.items() if name != "samples"}
                values = {name: value for name, value in columns.items() if value is not None}
                records.append(_record(_scalars(int(samples), values)))
            target = folder / f"slot-{slot:02d}" / f"events.out.tfevents.{generation:04d}"
            target.parent.mkdir(exist_ok=True)
            replace_file(target, b"".join(records))
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror}; name another folder with --out") from None


class EventFile:
    """An event file that grows while an agent trains: FOLDER/events.out.tfevents.N, with a new number N each."""

    def __init__(self, folder: Path) -> None:
        """Raises RunError if the folder cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            number = len(list(folder.glob("events.out.tfevents.*")))
            self._file = (folder / f"events.out.tfevents.{number:04d}").open("xb")
        except OSError as error:
            raise RunError(f"cannot write {folder}: {error.strerror}; name another folder") from None
        self._file.write(_file_header())

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars by name; a reader sees them at once."""
        self._file.write(_record(_scalars(step, values)))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _file_header() -> bytes:
    return _record(_WALL_TIME + struct.pack("<d", 0.0) + _FILE_VERSION + _with_length(b"brain.Event:2"))


def _scalars(step: int, values: Mapping[str, float]) -> bytes:
    """An Event of scalars. Its time is the step, so that equal runs have equal files."""
    summary = b"".join(
        _VALUE + _with_length(_TAG + _with_length(name.encode()) + _SIMPLE_VALUE + struct.pack("<f", value))
        for name, value in values.items()
    )
    return _WALL_TIME + struct.pack("<d", step) + _STEP + _varint(step) + _SUMMARY + _with_length(summary)


def _with_length(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """A non-negative integer in groups of 7 bits, the lowest first; the high bit marks that another follows."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked_crc(length) + event + _masked_crc(event)


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_CASTAGNOLI if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_CRC = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (crc >> 15 | crc << 17) + _MASK & 0xFFFFFFFF)
