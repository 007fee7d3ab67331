"""Runs and launches: submit, follow, interrupt, and what travels with them or comes back from them."""
