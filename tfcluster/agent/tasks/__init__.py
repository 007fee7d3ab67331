"""Supervises the tasks of this host: lifecycle, health checks and resource usage."""
