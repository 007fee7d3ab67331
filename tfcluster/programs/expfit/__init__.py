"""Learning y = e^x with a small network, on one task or spread over several in two ways."""

from tfcluster.programs.expfit.training import run

__all__ = ["run"]
