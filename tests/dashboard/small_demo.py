"""`finrl-pod dashboard` whose quick demo has fewer samples and pods and shorter splits: python -m, as the program."""

from __future__ import annotations

import dataclasses
import os
import sys

from finrl_pod_app.cli.main import run
from finrl_pod_app.dashboard.serving import server
from finrl_pod_app.setup import presets

from finrl_pod.settings.run import SplitConfig

QUICK = presets.PRESETS["quick"]
SMALL = dataclasses.replace(
    QUICK,
    splits=SplitConfig(("2016-01-04", "2017-12-29"), ("2018-01-02", "2018-12-31"), ("2019-01-02", "2019-12-31")),
    environment=dataclasses.replace(QUICK.environment, window=60),
    tournament=dataclasses.replace(QUICK.tournament, pods=2, samples_per_generation=512, leaderboard=2, champion=2),
)


def serve_here(_: str, command: list[str], environment: dict[str, str]) -> None:
    """In place of `os.execve`: a new process would have the usual presets."""
    os.environ.update(environment)
    sys.argv = command[2:]
    server.main()


if __name__ == "__main__":
    presets.PRESETS = {**presets.PRESETS, "quick": SMALL}
    os.execve = serve_here  # type: ignore[assignment]
    sys.exit(run(sys.argv[1:]))
