"""Learning curves as TensorBoard event files: one run per slot, one file per generation, each written atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finrl_pod.errors import RunError


def write(folder: Path, generation: int, metrics: Mapping[str, Any]) -> None:
    """Write `folder`/slot-SS/events.out.tfevents.GGGG for each slot; writing a generation again replaces its files.

    metrics: {"slots": [P], "rows": [{"samples": [P], name: [P]}]}; None is omitted. A scalar's step is the
    number of samples of its agent, so a replaced slot starts a new curve. Raises RunError.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as scratch:
            for p, slot in enumerate(metrics["slots"]):
                place = Path(scratch) / f"{slot}"
                writer = EventFileWriter(str(place))
                for row in metrics["rows"]:
                    values = [
                        Summary.Value(tag=name, simple_value=column[p])
                        for name, column in row.items()
                        if name != "samples" and column[p] is not None
                    ]
                    step = row["samples"][p]
                    if step is None:  # a row of another cohort
                        continue
                    writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=values)))
                writer.close()
                (written,) = place.iterdir()
                target = folder / f"slot-{slot:02d}" / f"events.out.tfevents.{generation:04d}"
                target.parent.mkdir(exist_ok=True)
                os.replace(written, target)
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror}; name another folder with --out") from None
