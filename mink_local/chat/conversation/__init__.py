"""The conversation: its messages, its answers, and its store. It knows nothing about the terminal."""
