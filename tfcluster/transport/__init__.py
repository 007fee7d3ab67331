"""How the command line reaches an agent."""
