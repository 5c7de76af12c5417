"""Panels that commands read and write, and the markets made from them."""
