"""By which ways a test reaches its hosts."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `way` to tests and fixtures that request it: `ssh`, and with the marker `every_way` also `connect`."""
    if "way" in metafunc.fixturenames:
        is_for_every = metafunc.definition.get_closest_marker("every_way") is not None
        connect = [pytest.param("connect", marks=pytest.mark.slow)] if is_for_every else []
        metafunc.parametrize("way", ["ssh", *connect], scope="module")
