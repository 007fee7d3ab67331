"""The process of a task: a TensorFlow server, and what closes its ports to other machines before it listens."""
