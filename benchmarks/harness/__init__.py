"""What all benchmarks share: rows, results files, command-line flags and simulated markets."""
