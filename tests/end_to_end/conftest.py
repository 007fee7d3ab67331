"""Other machines, and by which ways a test reaches its hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.namespaces import Network, network
from tests.other_host import OtherHost, another_host


@pytest.fixture
def other_host(needs_network: None) -> Iterator[OtherHost]:
    with another_host() as made:
        yield made


@pytest.fixture(scope="module")
def machines(needs_network: None) -> Iterator[Network]:
    with network("alpha", "beta", "stranger") as made:
        yield made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `way` to tests and fixtures that request it: `ssh`, and with the marker `every_way` also `connect`."""
    if "way" in metafunc.fixturenames:
        is_for_every = metafunc.definition.get_closest_marker("every_way") is not None
        connect = [pytest.param("connect", marks=pytest.mark.slow)] if is_for_every else []
        metafunc.parametrize("way", ["ssh", *connect], scope="module")
