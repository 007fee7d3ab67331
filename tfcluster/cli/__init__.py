"""The command line: modules of commands, imported lazily when a command is called."""
