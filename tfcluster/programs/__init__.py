"""The bundled programs, which a run's driver executes. Outside of this package only `tfcluster.connection`
imports TensorFlow."""
