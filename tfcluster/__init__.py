"""tfcluster: one YAML file in, a running, supervised TensorFlow cluster out."""

__version__ = "0.1.0"
