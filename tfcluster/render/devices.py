"""What `devices` shows."""

from __future__ import annotations

from collections.abc import Sequence

from tfcluster.model.devices import Device
from tfcluster.render.console import console
from tfcluster.render.table import table
from tfcluster.render.words import memory


def show_devices(devices: Sequence[Device]) -> None:
    """Print a row for each device."""
    rows = [(device.short, device.type, memory(device.memory_bytes), _kind(device)) for device in devices]
    console().print(table(("DEVICE", "TYPE", "MEMORY", "DESCRIPTION"), rows, right=("MEMORY",)), soft_wrap=True)


def _kind(device: Device) -> str:
    if device.gpu is not None:
        return f"{device.gpu.name}, compute capability {device.gpu.compute_capability}"
    return device.description or "-"
