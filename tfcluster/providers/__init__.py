"""Where the hosts of a cluster come from, if the spec does not name them."""
