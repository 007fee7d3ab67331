"""The daemon that supervises a cluster's tasks on one host."""
