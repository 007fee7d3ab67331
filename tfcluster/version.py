"""The version of tfcluster."""

__version__ = "0.1.0"
