"""What DTensor and Keras find in the environment of the members of a launch: real programs over two members."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.conftest import SCRIPTS, Sandbox
from tfcluster.core.groups import DISTRIBUTION_VARIABLES

CLUSTER = Cluster(
    "jobs:\n  worker: {tasks: 2}\n  named: {tasks: 2, env: {DTENSOR_JOB_NAME: mine}}\n  chief: {tasks: 1}\n", warm=True
)


def seen_by(sandbox: Sandbox, *arguments: str | Path) -> list[Any]:
    """Launch a script, and return what its members have printed, in the order of their ranks."""
    lines = [line for line in sandbox("launch", *arguments, timeout=300).stdout.splitlines() if " | {" in line]
    return [json.loads(line.partition(" | ")[2]) for line in sorted(lines)]


def check_product(seen: list[Any]) -> None:
    """Check that each of two members has computed its own half of the rows."""
    a = [[4 * row + column for column in range(4)] for row in range(8)]
    product = [[sum(row[k] * (3 * k + column) for k in range(4)) for column in range(3)] for row in a]
    assert [(each["client"], each["clients"], each["is_right"]) for each in seen] == [(0, 2, True), (1, 2, True)]
    assert [part for each in seen for part in each["rows"]] == [product[row : row + 2] for row in (0, 2, 4, 6)]


def test_dtensor_multiplies_a_matrix_that_is_divided_over_two_members(cluster: Sandbox) -> None:
    check_product(seen_by(cluster, "--each", "worker", SCRIPTS / "multiply.py"))


@pytest.mark.slow
def test_dtensor_multiplies_a_matrix_in_a_cluster_of_the_command(sandbox: Sandbox) -> None:
    check_product(seen_by(sandbox, "--workers", "2", SCRIPTS / "multiply.py"))


# Begins as a fork of an interpreter that has imported TensorFlow, unless its environment differs for libraries.
STARTS = """
import json, os, sys

found = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(("DTENSOR_", "KERAS_DISTRIBUTION_"))}
sys.stdout.write(json.dumps({"is_warm": "tensorflow" in sys.modules, **found}) + "\\n")
"""


def test_members_start_warm_and_one_that_trains_alone_has_no_neighbors_of_its_launcher(cluster: Sandbox) -> None:
    cluster.spec(STARTS, "starts.py")
    both = seen_by(cluster, "--each", "worker", "starts.py")
    assert [(each["is_warm"], each["DTENSOR_CLIENT_ID"]) for each in both] == [(True, "0"), (True, "1")]
    inherited = {name: text for name, text in both[0].items() if name != "is_warm"}
    assert len(inherited) == len(DISTRIBUTION_VARIABLES)
    lines = cluster("launch", "--each", "chief", "starts.py", env=inherited).stdout
    assert json.loads(lines.partition(" | ")[2].partition("\n")[0]) == {"is_warm": True}


if int(version("keras").partition(".")[0]) >= 3:  # earlier ones have no keras.distribution

    def test_keras_finds_all_members_and_the_spec_overrides_what_they_find(cluster: Sandbox) -> None:
        one, other = seen_by(cluster, "--each", "named", SCRIPTS / "find_members.py")
        assert (one["job"], other["job"]) == ("mine", "mine")
        addresses = one["given"][0]
        assert [one["given"], other["given"]] == [[addresses, 2, 0], [addresses, 2, 1]]
        assert len({*addresses}) == 2
        assert [one["shape"], other["shape"]] == [[2], [2]]
