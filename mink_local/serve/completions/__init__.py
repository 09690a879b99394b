"""/v1/chat/completions and /v1/completions: OpenAI's chat completions, with others' fields."""
