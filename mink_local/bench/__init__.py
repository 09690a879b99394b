"""mink-bench: what sampling, generation and many answers at a time cost."""
