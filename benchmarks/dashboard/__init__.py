"""Speed, memory and load of the dashboard."""
