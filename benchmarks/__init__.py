"""Benchmarks and studies of finrl_pod: `python -m benchmarks NAME`; not part of the wheel."""
