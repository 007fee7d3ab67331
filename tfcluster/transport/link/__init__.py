"""The link to each other host: a process here that keeps one session there, over which all commands connect."""
