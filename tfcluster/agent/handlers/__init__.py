"""What the agent does for each method of the protocol."""
