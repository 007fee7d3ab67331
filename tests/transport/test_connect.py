"""A command that joins its arguments, as ssh does, as the way to a host."""

from __future__ import annotations

import subprocess
import sys

from tests.transport.conftest import TransportFactory, use

_WORDS = ["a b", "$HOME", "'", '"', "\\", "*", "é"]


def test_a_command_that_joins_its_arguments_gets_one_word(make_transport: TransportFactory) -> None:
    transport = make_transport(ssh=None, connect="ssh {terminal:-t} {host} {command}")
    report = transport.examine()
    assert (report.problems, report.program) == ((), "ssh")
    line = transport.command_line([sys.executable, "-c", "import sys; print(sys.argv[1:])", *_WORDS], is_terminal=False)
    assert line[:2] == ["ssh", "h0"]
    shown = subprocess.run(line, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    assert shown == f"{_WORDS}\n"
    assert transport.command_line(["true"], is_terminal=True)[:3] == ["ssh", "-t", "h0"]
    use(transport)  # then the agent exits
