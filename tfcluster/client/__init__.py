"""What a command does with the agents."""
