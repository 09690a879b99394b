"""`mink-eval frontier`: each sampler's exact tail mass–variety trade-off, given the logits of two models."""
