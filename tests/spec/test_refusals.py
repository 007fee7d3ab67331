"""Each file of tests/spec/refusals is a spec that is refused; behind it, in comments, is the whole error.

`pytest --update` writes the errors anew. `VARIABLES` are the variables of the environment.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.load import load_spec
from tfcluster.spec.variables import SpecEnvironment

REFUSALS = ROOT / "tests" / "spec" / "refusals"
FILES = sorted(REFUSALS.glob("*.yaml"))
HEADING = "\n# The error:\n"
#: What no message may contain.
SECRETS = ("hunter2", "xyzzy", "4711")
VARIABLES = {
    **{"NAME": "demo", "EMPTY": "", "TOKEN": "hunter2", "BYTES": "a\udcff"},
    **{"OCTAL": "010", "BASE_60": "1:30", "NULL": "~"},
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_wrong_spec_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(REFUSALS)
    with pytest.raises(ClusterError) as caught:
        load_spec(Path(file.name), SpecEnvironment(VARIABLES, allocation={}))
    error = caught.value
    assert error.exit_code is ExitCode.USAGE
    shown = "".join(traceback.format_exception(error))
    assert not [secret for secret in SECRETS if secret in shown]
    spec, _, expected = file.read_text().partition(HEADING)
    found = "".join(f"# {line}\n" for line in str(error).splitlines())
    if request.config.getoption("--update") and found != expected:
        file.write_text(f"{spec}{HEADING}{found}")
    else:
        assert found == expected
