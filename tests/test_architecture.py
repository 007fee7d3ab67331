"""What docs/architecture.md names exists; test_stories.py has whether it happens."""

from __future__ import annotations

import re

from tests.stories import ROOT, TEXT, functions_in, read_stories

STEPS = sorted({step for story in read_stories().values() for step in story.steps})


def test_stories_are_read() -> None:
    assert len(STEPS) > 100


def test_every_step_of_a_story_exists() -> None:
    assert [step for step in STEPS if step.partition(":")[2] not in functions_in(step.partition(":")[0])] == []


def test_every_folder_is_described() -> None:
    described = set(re.findall(r"^\| `([\w/]+)/` \|", TEXT, re.MULTILINE))
    folders = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/__init__.py")}
    in_the_row_of_their_parent = {"protocol/api", "ui/top", "dashboard/page"}
    programs = {folder for folder in folders if folder.startswith("programs/")}
    assert described == folders - in_the_row_of_their_parent - programs
