"""Compute the mean and the variance of numbers that are distributed over the devices in slices of any sizes."""

from tfcluster.programs.api import Program

PROGRAM = Program(help="Mean and variance of the numbers in a file, in slices of any sizes.", fault_tolerant=True)
