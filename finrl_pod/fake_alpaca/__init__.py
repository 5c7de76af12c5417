"""Fake Alpaca server: paper trading API, market data API and trade-updates stream on loopback, from a price panel."""
