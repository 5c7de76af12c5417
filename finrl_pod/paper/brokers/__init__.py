"""Brokers behind one protocol: a paper account at Alpaca and a simulated broker."""
