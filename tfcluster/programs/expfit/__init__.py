"""Train a small network on y = e^x: on a single task, data-parallel or model-parallel."""

from tfcluster.programs.expfit.training import run

__all__ = ["run"]
