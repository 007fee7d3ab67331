"""Estimate pi from random points, counted on all devices."""

from tfcluster.programs.api import Program

PROGRAM = Program(
    help="Pi from random points, counted on all devices.",
    fault_tolerant=True,
    describe=lambda parameters: f"samples={parameters['samples']} seed={parameters['seed']}",
)
