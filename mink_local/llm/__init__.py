"""Plugin for `llm`: the models on this machine, which answer in its process."""
