"""The transport between the command line and the agents: Unix sockets on this machine, ssh to other hosts."""
