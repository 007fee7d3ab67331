"""Keep one started command for each `connect:` host, over which all commands on this machine connect to it."""
