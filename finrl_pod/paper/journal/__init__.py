"""The daemon journal: intents, orders, fills and decisions in one append-only SQLite file."""
