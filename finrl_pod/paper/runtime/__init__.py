"""The daemon's process: main loop, clocks, schedule, commands and replay."""
