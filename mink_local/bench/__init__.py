"""mink-bench: what sampling costs by itself, in generation, and with many answers at a time."""
