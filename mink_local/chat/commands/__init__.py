"""The commands of the chat, which begin with a slash."""
