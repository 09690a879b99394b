"""Measure noise against variety of every method, exactly, by the logits of a model and of a larger one."""
