"""The client side of the commands: plan, apply, watch and query a cluster through the agents on its hosts."""
