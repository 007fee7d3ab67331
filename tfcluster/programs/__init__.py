"""The bundled programs; the only place that imports TensorFlow."""
