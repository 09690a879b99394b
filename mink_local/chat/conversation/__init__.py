"""The conversation: its messages, its answers, and where they are kept. It knows nothing of the terminal."""
