"""The command line: one module per command, imported lazily when the command is called."""
