"""Run a benchmark: `python -m benchmarks NAME`."""

import sys

from benchmarks.runner import main

INTERRUPTED = 130

try:
    code = main(sys.argv[1:])
except KeyboardInterrupt:
    code = INTERRUPTED
sys.exit(code)
