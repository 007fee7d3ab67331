"""The agent: the daemon that supervises a cluster's tasks on one host."""
