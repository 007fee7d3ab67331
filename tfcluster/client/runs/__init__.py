"""Runs and launches: submit, follow, interrupt, and the files that are sent with them or fetched afterwards."""
