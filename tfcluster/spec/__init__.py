"""The spec: load the user's YAML file and validate it into one frozen model."""
