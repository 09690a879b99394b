"""GGUF files: names, locations, download, metadata, memory, trust."""
