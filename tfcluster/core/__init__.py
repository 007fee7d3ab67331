"""Pure descriptions and decisions: states, topology, plan, device selection; no I/O."""
