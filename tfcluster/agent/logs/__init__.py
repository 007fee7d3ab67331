"""The logs of a host: what the agent keeps of them, and how commands read them."""
