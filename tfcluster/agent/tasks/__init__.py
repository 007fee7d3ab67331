"""The tasks of this host: their lives, health and use."""
