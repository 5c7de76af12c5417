"""Run the benchmarks with torch, numpy and pandas only: `python -m benchmarks`."""

import sys

from benchmarks.runner import main

INTERRUPTED = 130

try:
    code = main(sys.argv[1:])
except KeyboardInterrupt:
    code = INTERRUPTED
sys.exit(code)
