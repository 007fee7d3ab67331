"""The process that connects the tasks of a private cluster with those on other hosts, by TLS."""
