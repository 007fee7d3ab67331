"""Texts that are no YAML, or not the YAML of a spec, with either of PyYAML's loaders."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.spec import yaml_source
from tfcluster.spec.diagnostics import Position
from tfcluster.spec.yaml_source import read_source

LOADERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if yaml.__with_libyaml__ else [])]
EMPTY = "the file is empty; tfcluster init writes a commented cluster.yaml"
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 1200))
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
MERGES = "a0: &a0 {x: y}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))

UNREADABLE: dict[str | bytes, str] = {
    "": f"1:1: {EMPTY}",
    "\n# only a comment\n": f"1:1: {EMPTY}",
    "---\n": f"1:1: {EMPTY}",
    "\n  hello": "2:3: expected keys such as jobs: at the top, found the text 'hello'; "
    "tfcluster init writes a commented cluster.yaml",
    "!!int {a: 1}": "1:1: the tag !!int has no meaning here; delete it",
    "- 1": "1:1: expected keys such as jobs: at the top, found a list; tfcluster init writes a commented cluster.yaml",
    "jobs:\n\tps: 1": "2:1: a tab cannot indent YAML; use spaces",
    b"jobs:\n  \xff": "2:3: the byte 0xff is not UTF-8; save the file as UTF-8",
    "jobs:\n  a\0": "2:4: the character U+0000 is not allowed in YAML; delete it",
    "jobs: \ud800": "1:7: the character U+D800 is not allowed in YAML; delete it",
    "jobs: {}\n---\njobs: {}": "2:1: a second document starts here; a spec is one document; "
    "keep each cluster in its own file",
    "[" * 60: "1:51: nested more than 50 levels deep",
    "{y: " * 60: "1:201: nested more than 50 levels deep",
    CHAIN: "1:10: nested more than 50 levels deep",
    "a: &a [*a]": "1:4: the alias refers to a value that contains the alias",
    "a: &a {<<: *a}": "1:4: the alias refers to a value that contains the alias",
    BOMB: "1:5: the file has more than 20000 values, aliases counted each time",
    "#" * (settings.SPEC_MAX_BYTES + 1): "1:1: the file is larger than 1 MiB",
}


@pytest.fixture(params=LOADERS)
def _each_loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_source, "LOADER", request.param)


def error_of(text: str | bytes) -> str:
    with pytest.raises(ClusterError) as caught:
        read_source(text, "c.yaml")
    return caught.value.message


@pytest.mark.usefixtures("_each_loader")
@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: repr(text[:20]))
def test_an_error_of_an_unreadable_text_has_one_line(text: str | bytes) -> None:
    assert error_of(text) == f"c.yaml:{UNREADABLE[text]}"


@pytest.mark.usefixtures("_each_loader")
def test_texts_beyond_the_limits_of_the_parser_itself_and_recursive_merges_are_errors() -> None:
    assert re.fullmatch(r"c\.yaml:1:\d+: nested more than 50 levels deep", error_of("[" * 10_000))
    assert "the file has more than 20000 values" in error_of(MERGES)


# The loaders word these differently.
@pytest.mark.usefixtures("_each_loader")
@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("a: b: c", "1:5"),
        ("a: [1, 2\nb: 3\n", "2:2"),
        ("a: *nothing", "1:4"),
        ("a: 'open", "1:9"),
        ("a: @x", "1:4"),
        ("a: {b\n", "2:1"),
    ],
)
def test_a_syntax_error_has_its_position(text: str, at: str) -> None:
    assert error_of(text).startswith(f"c.yaml:{at}: not valid YAML: ")


@pytest.mark.usefixtures("_each_loader")
@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"', "a: !%ff x", f"%YAML {'9' * 5000}.1\n---\na: 1"])
def test_escapes_and_directives_out_of_range_are_errors(text: str) -> None:
    assert "not valid YAML: " in error_of(text)


@pytest.mark.usefixtures("_each_loader")
def test_keys_and_values_have_positions() -> None:
    read = read_source("\ufeffa:\n  é: [x, {b: 0x10}]\n", "c.yaml")
    expected: dict[str, Any] = {"a": {"é": ["x", {"b": 16}]}}
    assert read.value == expected
    assert read.keys == {
        ("a",): Position(1, 1),
        ("a", "é"): Position(2, 3),
        ("a", "é", 1, "b"): Position(2, 11),
    }
    assert read.values == {
        (): Position(1, 1),
        ("a",): Position(2, 3),
        ("a", "é"): Position(2, 6),
        ("a", "é", 0): Position(2, 7),
        ("a", "é", 1): Position(2, 10),
        ("a", "é", 1, "b"): Position(2, 14),
    }
    assert read.texts == {("a", "é", 0): "x", ("a", "é", 1, "b"): "0x10"}


def test_a_lone_surrogate_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_source, "LOADER", yaml.SafeLoader)  # libyaml refuses it by itself
    assert error_of('a: "\\ud800"') == "c.yaml:1:4: an escape in this text stands for half a character"
    assert error_of('"\\ud800": a') == "c.yaml:1:1: an escape in this text stands for half a character"
