"""Mechanisms of Linux: processes, namespaces, files and sockets. Nothing here knows what a cluster is."""
