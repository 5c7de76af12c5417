"""The process of the dashboard: its server and the check of its requests."""
