"""mink-bench: what sampling, generation, many answers at a time and a server cost."""
