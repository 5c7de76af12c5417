"""What pages start: jobs, deployment, sessions, reports in a tab."""
