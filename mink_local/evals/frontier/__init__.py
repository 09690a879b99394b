"""`mink-eval frontier`: each sampler's exact noise–variety trade-off, given the logits of two models."""
