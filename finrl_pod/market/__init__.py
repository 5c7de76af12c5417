"""The accounting of markets."""
