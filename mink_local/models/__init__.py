"""GGUF files: names, places, download, metadata, memory, trust."""
