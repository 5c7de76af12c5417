"""The daemon process: main loop, clocks, schedule, commands and replay."""
