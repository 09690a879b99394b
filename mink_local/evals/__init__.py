"""mink-eval: evaluation of GGUF models across samplers and temperatures."""
