"""Monitoring of the daemon: heartbeat, health endpoint, alerts, logs and the status report."""
