"""What tests need of the machine is declared, and what is missing is said in one line."""

from __future__ import annotations

import pytest

from tests import requirements


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any of the programs, for an ordinary user."""
    monkeypatch.setattr(requirements, "_is_there", lambda thing: False)


@pytest.mark.usefixtures("bare")
def test_one_line_says_what_is_missing_for_how_many_tests() -> None:
    assert requirements.summarize([{"browser"}, set(), {"browser", "fish"}]) == (
        "tests skipped: 2, as this is missing: chromium (2), chromedriver (2), fish (1); "
        "`make test-setup` installs the programs (apt, as root)"
    )
    assert requirements.summarize([{"root"}]) == (
        "tests skipped: 1, as this is missing: root that may create namespaces (1)"
    )
    assert requirements.summarize([set()]) == ""


def test_a_test_cannot_use_what_it_does_not_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "declared", {"network"})
    requirements.check_declared("root")
    with pytest.raises(AssertionError, match="uses `sshd` without"):
        requirements.check_declared("sshd")
