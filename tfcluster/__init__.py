"""tfcluster turns a YAML file into a running, supervised TensorFlow cluster."""

__version__ = "0.1.0"
