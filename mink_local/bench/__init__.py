"""mink-bench: what sampling costs alone, in generation, and with many answers at a time."""
