"""Requests to agents: connections, retries, and calls of many hosts in parallel."""
