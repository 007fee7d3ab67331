"""Hosts from Slurm: the nodes of a job."""
