"""A stand-in for Alpaca's paper trading and market data APIs on loopback, fed from a panel of prices."""
