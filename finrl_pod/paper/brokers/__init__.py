"""Brokers behind one protocol: Alpaca's paper account and a simulated broker."""
