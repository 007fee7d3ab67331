"""The pure core, without I/O: states, topology, reconciliation, plan, device selection."""
