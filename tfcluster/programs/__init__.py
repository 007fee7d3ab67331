"""The bundled programs, which a run's driver executes. No package outside this one imports TensorFlow."""
