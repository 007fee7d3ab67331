"""The agent's end of the connections of commands."""
