"""Fit a line by distributed training: parallel workers, with the parameters on parameter servers."""

from tfcluster.core.topology import PS_JOB
from tfcluster.programs.api import Program, TaskSelector

PROGRAM = Program(
    help="A line fitted by all workers at once, its parameters on the ps.",
    fault_tolerant=True,
    # The variables are on all tasks of the job ps, or on the head task; see config.assign_roles.
    required_tasks=lambda parameters: [(TaskSelector(job=PS_JOB), TaskSelector(head=True))],
)
