"""What a GPU does in an iteration, measured on a device or counted on the CPU."""
