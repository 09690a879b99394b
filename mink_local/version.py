"""Version of the package; its metadata and its command lines take it from here."""

__version__ = "0.2.0"
