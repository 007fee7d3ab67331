"""The output of `tfcluster devices`: a table of devices."""

from __future__ import annotations

from collections.abc import Sequence

from tfcluster.core.devices import Device
from tfcluster.ui.console import console
from tfcluster.ui.format import memory
from tfcluster.ui.table import table


def show_devices(devices: Sequence[Device], hosts: Sequence[str] = ()) -> None:
    """Print a table with a row for each device.

    Args:
        devices: The devices.
        hosts: The host of each device; empty if all are on this machine.
    """
    columns = ["DEVICE", "TYPE", "MEMORY", "DESCRIPTION"]
    rows = [[device.short, device.type, memory(device.memory_bytes), _kind(device)] for device in devices]
    if hosts:
        columns.insert(1, "HOST")
        for row, host in zip(rows, hosts, strict=True):
            row.insert(1, host)
    console().print(table(columns, rows, right=("MEMORY",)), soft_wrap=True)


def _kind(device: Device) -> str:
    if device.gpu is not None:
        return f"{device.gpu.name}, compute capability {device.gpu.compute_capability}"
    return device.description or "-"
