"""An S3-compatible server on loopback, with one bucket."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import fsspec
import pytest

BUCKET = "agents"


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Context manager: start the server, with credentials and endpoint in the environment. Yields s3://BUCKET."""
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        server = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}
        )
        assert server.stderr is not None
        try:
            address = next(line.split()[-1] for line in server.stderr if "Running on" in line)
            patch.setenv("AWS_ENDPOINT_URL", address)
            fsspec.filesystem("s3", skip_instance_cache=True).mkdir(BUCKET)
            yield f"s3://{BUCKET}"
        finally:
            server.kill()
            server.wait()
            server.stderr.close()
