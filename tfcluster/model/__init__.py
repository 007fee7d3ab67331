"""Pure descriptions and decisions: states, layout, plan, device selection; no I/O."""
