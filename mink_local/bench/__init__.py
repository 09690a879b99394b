"""mink-bench: what sampling costs on its own, in generation, and with many answers at a time."""
