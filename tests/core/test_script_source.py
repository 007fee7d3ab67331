"""What is found in the source of a script without running it."""

from __future__ import annotations

import io
from zipfile import ZipFile

import pytest

from tfcluster.core.script_source import find_change, find_other_program, lacks_main

SHELL = b"#!/bin/bash\necho $HOME\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SHELL, "a script of /bin/bash"),
        (b"#! /usr/bin/env -S perl -w\nprint <$x>;\n", "a script of /usr/bin/env -S perl -w"),
        (b"\x7fELF\x02\x01\x01\0", "a compiled program (ELF)"),
        (b"#!/opt/pypy\n\xff\xfe", "a script of /opt/pypy"),
        (b"#!/usr/bin/env python3\nprint(", None),
        (b"#!/bin/sh\n'''exec' /long/path/to/python \"$0\" \"$@\"\n' '''\nprint('\\d')\n", None),
        (b"#!/opt/pypy\nprint(1)\n", None),
        (b"#!/opt/pypy\nPK\3\4\0PK\5\6" + bytes(18), None),
        (b"echo $HOME\n", None),
        (b"", None),
    ],
)
def test_programs_that_only_the_kernel_can_execute_are_told_from_python(source: bytes, expected: str | None) -> None:
    assert find_other_program("train", source) == expected


def test_the_name_of_a_shell_script_tells_it_if_it_is_not_python() -> None:
    assert find_other_program("train.sh", b"echo $HOME\n") == "a script of a shell"
    assert find_other_program("train.sh", b"python train.py\n") == "a script of a shell"
    assert find_other_program("train.sh", b"print(1)\n") is None


@pytest.mark.parametrize(
    ("name", "expected"), [("__main__.py", False), ("__main__.pyc", False), ("package/__main__.py", True), ("a", True)]
)
def test_an_archive_that_python_cannot_execute_is_found(name: str, expected: bool) -> None:
    archive = io.BytesIO()
    with ZipFile(archive, "w") as writing:
        writing.writestr(name, "")
    for before in (b"", b"#!/usr/bin/env python3\n"):
        assert lacks_main(before + archive.getvalue()) is expected
    assert not lacks_main(archive.getvalue()[:-30])  # no archive


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ('os.environ["TF_CONFIG"] = "{}"', True),
        ('environ["TF_CONFIG"] += " "', True),
        ('del os.environ["TF_CONFIG"]', True),
        ('os.environ.update({"A": "b", "TF_CONFIG": "{}"})', True),
        ('os.environ.update(TF_CONFIG="{}")', True),
        ('os.environ |= {"TF_CONFIG": "{}"}', True),
        ('os.environ.pop("TF_CONFIG", None)', True),
        ('os.putenv("TF_CONFIG", "{}")', True),
        ('if True:\n  def set(): os.environ["TF_CONFIG"] = "\\d"', True),
        ('print(os.environ["TF_CONFIG"], os.environ.get("TF_CONFIG"))', False),
        ('os.environ["TF_CONFIGS"] = os.environ["A"] = "TF_CONFIG"', False),
        ('os.environ.setdefault("TF_CONFIG", "{}")', False),
        ('if "TF_CONFIG" not in os.environ:\n  os.environ["TF_CONFIG"] = "{}"', False),
        ('env["TF_CONFIG"] = "{}"; env.update(TF_CONFIG="{}")', False),
        ('# os.environ["TF_CONFIG"] = "{}"\n"""os.environ["TF_CONFIG"] = 1"""', False),
        ('os.environ["TF_CONFIG"] = ', False),
        ("x = " + "-" * 100_000 + "1", False),
    ],
)
def test_a_change_of_a_variable_is_found_with_its_line(change: str, is_found: bool) -> None:
    line = 4 if "\n  def" in change else 3
    assert find_change(f"import os\n\n{change}\n".encode(), "TF_CONFIG") == (line if is_found else None)
