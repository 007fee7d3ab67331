"""Hosts from Kubernetes: the pods of a StatefulSet."""
