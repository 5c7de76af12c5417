"""A stand-in for Alpaca's paper trading and market data on the loopback, fed from a panel, with a clock of its own."""
