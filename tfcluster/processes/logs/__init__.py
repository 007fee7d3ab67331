"""Rotating logs, and the process that copies the output of tasks to them."""
