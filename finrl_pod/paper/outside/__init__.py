"""What can be seen of the daemon from outside: logs, alerts, a heartbeat, health and metrics."""
