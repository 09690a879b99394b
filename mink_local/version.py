"""The package's version, read by its metadata and command lines."""

__version__ = "0.2.0"
