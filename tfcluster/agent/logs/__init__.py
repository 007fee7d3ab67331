"""Collects and reads the logs of tasks, and writes the event log."""
