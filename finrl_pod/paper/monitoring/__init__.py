"""What shows the daemon's state: logs, alerts, heartbeat, health, status."""
