"""Inputs and outcomes of runs in short, and lists on terminals of any width; tests/test_goldens.py has whole ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cast import DEVICES, CastCluster, print_at, status_of, tfcluster
from tests.cast import cast as cast
from tests.goldens import golden
from tfcluster.ui.listings import format_outcome, show_devices, show_status

_SCRIPT: dict[str, Any] = {"program": "script", "parameters": {}, "result": None, "error": None}
_DIED = {"message": "the driver of pi-1 died (SIGKILL); its last output:\n  Traceback\n  MemoryError"}


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        ({"error": _DIED}, "the driver of pi-1 died (SIGKILL); its last output: MemoryError"),
        ({"result": {"exit_code": 0}}, ""),
        ({"result": {"exit_code": 0, "restarts": 0}}, ""),
        ({"result": {"exit_code": 0, "restarts": 2}}, "2 restarts"),
        (
            {"result": {"exit_code": 0, "restarts": 1, "metrics": {"worker:0": {"loss": 0.25}}}},
            "worker:0: loss=0.25; 1 restart",
        ),
    ],
)
def test_the_outcome_of_a_script(run: dict[str, Any], outcome: str) -> None:
    assert format_outcome({**_SCRIPT, **run}) == outcome


def test_a_cluster_on_one_host_names_it_once(cast: CastCluster) -> None:
    golden("status-of-one-host-narrow.txt", print_at(60, lambda: show_status(status_of("alpha"))))
    golden("devices-of-one-host.txt", print_at(1000, lambda: show_devices(DEVICES["alpha"])))


def test_numbers_are_not_split_on_a_narrow_terminal(cast: CastCluster) -> None:
    for width in (20, 40, 60, 70, 75, 80, 90, 100, 120):
        words = tfcluster("runs", columns=width).split()
        for word in ("pi-0002", "2026-01-28", "04:00:00", "samples=10000000", "pi=3.14145", "stderr=0.00051929"):
            assert word in words, width
