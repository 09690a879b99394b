"""mink-eval: evaluation of GGUF models over sampling methods and temperatures."""
