"""mink-bench: what sampling, decoding and batching cost."""
