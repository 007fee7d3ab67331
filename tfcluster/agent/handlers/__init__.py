"""The agent's RPC handlers, one module for each group of the protocol's methods."""
