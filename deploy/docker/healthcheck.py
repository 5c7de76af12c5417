"""Exit with 0 if a URL answers with a status below 400: the health check of containers.

The URL is the first argument, or FINRL_POD_HEALTH_URL; without either there is nothing to ask.
"""

import os
import sys
import urllib.request

TIMEOUT_SECONDS = 5


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    url = arguments[0] if arguments else os.environ.get("FINRL_POD_HEALTH_URL", "")
    if not url:
        return 0
    if not url.startswith(("http://127.0.0.1:", "http://localhost:")):
        sys.stderr.write(f"the URL must be on this machine, got {url}\n")
        return 2
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS):
            return 0
    except OSError as error:  # refused, timed out, or a status of 400 and above
        sys.stderr.write(f"{url}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
