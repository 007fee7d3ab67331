"""`down` and a process that SIGKILL does not end, as its disk does not answer: it is named, and all else is stopped."""

from __future__ import annotations

import pytest

from tests.conftest import Sandbox, wait_for
from tests.stuck import is_stuck, silent_file_system

SPEC = "name: stuck\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"
READ = """
import os
import tensorflow.compat.v1 as tf

with tf.Graph().as_default(), tf.Session(os.environ["TFCLUSTER_MASTER"]) as session:
    with tf.device("/job:worker/task:1"):
        session.run(tf.io.read_file(os.environ["STUCK_FILE"]))
"""


@pytest.mark.slow
@pytest.mark.needs("root")
def test_down_names_a_server_that_waits_for_its_disk(
    sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mounted = tmp_path_factory.mktemp("mounted")  # not beside the script, whose folder Python looks through
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_settings({"KILL_SECONDS": 2.0}))
    pid = sandbox.task("worker:1")["pid"]
    with silent_file_system(mounted):
        run = sandbox.start("run", sandbox.spec(READ, "read.py"), env={"STUCK_FILE": str(mounted / "data")})
        wait_for(lambda: is_stuck(pid))
        failed = sandbox("down", "--grace", "1", code=1, timeout=40)
        assert f"worker:1 (pid {pid}) of cluster 'stuck': still running 2 s after SIGKILL" in failed.stderr
        assert not [title for title in sandbox.processes().values() if title.split()[-1] in ("ps:0", "worker:0")]
        run.wait(30)
    assert "stuck is down" in sandbox("down").stdout
    assert sandbox.leftovers() == []
