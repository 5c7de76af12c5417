"""Registry of trained agents: content-addressed champions, and which champion each strategy trades."""
