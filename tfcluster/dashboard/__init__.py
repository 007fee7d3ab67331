"""The page of `tfcluster dashboard`, its server on the loopback device, and the report of a run as one file."""
