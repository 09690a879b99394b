"""mink-bench: what a step of each sampler costs."""
