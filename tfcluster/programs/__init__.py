"""The bundled programs, for a run's driver. Outside of this package only `tfcluster.connection` imports TensorFlow."""
