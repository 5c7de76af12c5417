"""Run the benchmarks with torch, numpy and pandas only: `python -m finrl_pod_app.bench`."""

import sys

from finrl_pod_app.bench.command import main

INTERRUPTED = 130

try:
    code = main(sys.argv[1:])
except KeyboardInterrupt:
    code = INTERRUPTED
sys.exit(code)
