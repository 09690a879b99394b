"""`mink-chat`: a conversation with a GGUF model in the terminal."""

from mink_local.chat.cli import main

__all__ = ["main"]
