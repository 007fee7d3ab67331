"""The full-screen view of a cluster, `tfcluster top`; the only place that imports Textual."""
