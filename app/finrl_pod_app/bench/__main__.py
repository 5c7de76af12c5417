"""Runs the benchmarks without the command line's packages."""

import sys

from finrl_pod_app.bench.command import main

INTERRUPTED = 130

try:
    code = main(sys.argv[1:])
except KeyboardInterrupt:
    code = INTERRUPTED
sys.exit(code)
