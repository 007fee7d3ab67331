"""Hints: the commands in them name the cluster or the spec."""

from __future__ import annotations

import pytest

from tfcluster.core.hints import complete_commands


@pytest.mark.parametrize(
    ("hint", "completed"),
    [
        ("`tfcluster status` shows it.", "`tfcluster status -c demo` shows it."),
        ("`tfcluster logs x-1`, `tfcluster stack x-1`", "`tfcluster logs -c demo x-1`, `tfcluster stack -c demo x-1`"),
        ("`tfcluster exec --on beta -- COMMAND` runs it", "`tfcluster exec -c demo --on beta -- COMMAND` runs it"),
        ("`tfcluster down -c other` or `tfcluster down --all`", "`tfcluster down -c other` or `tfcluster down --all`"),
        ("`tfcluster doctor` checks it", "`tfcluster doctor 'a b.yaml'` checks it"),
        ("`tfcluster doctor --print-systemd`", "`tfcluster doctor 'a b.yaml' --print-systemd`"),
        ("`tfcluster up SPEC` gives it again", "`tfcluster up 'a b.yaml'` gives it again"),
        ("`tfcluster up --dry-run`", "`tfcluster up 'a b.yaml' --dry-run`"),
        ("`tfcluster up x.yaml`", "`tfcluster up x.yaml`"),
        ("`tfcluster init other.yaml`", "`tfcluster init other.yaml`"),
        ("`tfcluster launch --workers 2 x.py`", "`tfcluster launch --workers 2 x.py`"),
        ("`tfcluster --help`, `tfcluster COMMAND --help`", "`tfcluster --help`, `tfcluster COMMAND --help`"),
        ("`kill -CONT 12` resumes it.", "`kill -CONT 12` resumes it."),
    ],
)
def test_commands_name_the_cluster_or_the_spec(hint: str, completed: str) -> None:
    assert complete_commands(hint, "demo", "a b.yaml") == completed
    assert complete_commands(completed, "demo", "a b.yaml") == completed
    assert complete_commands(hint) == hint
