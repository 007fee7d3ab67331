"""Parse the placements of operations from the servers' logs and render placed graphs; no I/O."""
