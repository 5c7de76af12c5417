"""Compiling, checking and loading of C++ kernels, and the headers that they share."""
