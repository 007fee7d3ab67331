"""The notation of the old grpc_tensorflow_server."""

from __future__ import annotations

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.load import parse_cluster_notation
from tfcluster.spec.schema import Address, Job, Spec

HINT = "write it as worker|localhost:2223;localhost:2224"
BAD = {
    "": [f"1: no job is named; {HINT}"],
    "a": [f"1: expected JOB|ADDRESS, found 'a'; {HINT}"],
    "a|localhost:1,": [f"15: expected JOB|ADDRESS, found ''; {HINT}"],
    "a|": ["3: jobs.a[0]: expected an address such as localhost:2222 or [::1]:2222, found the text ''"],
    "a|localhost:1, a|localhost:2": ["16: jobs.a: this job is already at column 1"],
    "1|localhost": ["1: jobs.1: expected the name of a job to be letters, digits and _, and to start with a letter"],
    "a|localhost:1;x:2,b|localhost:0; localhost:1": [
        "15: jobs.a[1]: the task's address is not on this machine: 'x'; write localhost:2, or give the spec hosts:",
        "21: jobs.b[0]: expected a port from 1 to 65535, found the text 'localhost:0'",
        "34: jobs.b[1]: b:1 has the address localhost:1 of a:0",
    ],
}


def test_jobs_and_their_addresses_are_read() -> None:
    spec = parse_cluster_notation("master|localhost:2222, worker|localhost:2223;localhost:2224")
    first, second, third = (Address(host="localhost", port=port) for port in (2222, 2223, 2224))
    assert spec == Spec(name="cluster", jobs={"master": Job(tasks=(first,)), "worker": Job(tasks=(second, third))})


@pytest.mark.parametrize("text", BAD)
def test_problems_have_a_column(text: str) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_cluster_notation(text)
    assert caught.value.message.splitlines() == [f"--cluster-spec:1:{line}" for line in BAD[text]]
    assert caught.value.exit_code is ExitCode.USAGE
