"""Two hosts of one cluster, for tests that bring it up and down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.hosts import Hosts, hosts_in
from tests.conftest import Sandbox


@pytest.fixture
def hosts(sandbox: Sandbox) -> Iterator[Hosts]:
    """Both hosts, with nothing up."""
    with hosts_in(sandbox) as found:
        yield found
