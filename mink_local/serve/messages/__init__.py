"""/v1/messages: Anthropic's interface, whose messages are lists of blocks."""
