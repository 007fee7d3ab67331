"""Starts, streams, cancels and records runs of programs."""
