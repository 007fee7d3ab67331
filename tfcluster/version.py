"""The version of tfcluster."""

__version__ = "0.2.0"
