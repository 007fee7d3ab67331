"""Estimate pi from random points, counted on all devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfcluster.programs.api import Program


def _describe(parameters: Mapping[str, Any]) -> str:
    return f"samples={parameters['samples']} seed={parameters['seed']}"


PROGRAM = Program(
    help="Pi from random points, counted on all devices.",
    fault_tolerant=True,
    describe=_describe,
)
