"""Speed and memory: environments, learners, backtests, worker pools, commands and whole tournaments."""
