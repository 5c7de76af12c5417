"""The daemon's process: its loop, clocks, schedule and commands."""
