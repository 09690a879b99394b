"""The protocols for answers: OpenAI's chat completions and responses, and Anthropic's messages."""
