"""The grid of a sweep: braces in arguments, files of trials, and what is drawn from them."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator

import pytest

from tests.goldens import golden
from tfcluster import settings
from tfcluster.core.sweep_file import parse_trials
from tfcluster.core.sweep_grid import make_trials, parse_arguments, to_value
from tfcluster.errors import ClusterError


def nothing(numbers: range, count: int) -> list[int]:
    raise AssertionError("nothing is drawn")


def trials_of(*arguments: str) -> list[list[str]]:
    """The arguments of all trials of a grid."""
    template = parse_arguments(arguments)
    return [template.fill(each) for each in make_trials([{}], template.grid, None, nothing)]


#: Arguments of trials, as a shell reads them.
ARGUMENTS = r"""
--lr {0.1,0.01,1e-3}
'{ adam, sgd }'
{../a,../b}
{1..4}
{1..-1}
'{0.1..0.001 log 3}'
'{1..16 log 5}'
'{1000..10000000 log 5}'
'{1e-308..1e308 log 3}'
{1,2} {a,b}
--lr {1,2} --to=lr-{lr}
'{{"lr": {1,2}}}'
'{"a": 1}' '{"a": {"b": [1, 2]}, "c": {}}' {} } plain ''
x{1..}
{0.1..0.9}
{a,{b,c}}
'{"lr": {1,2}}'
--lr={1,2
{1,,2}
'{"a","b"}'
{1..3,7}
"{'a': 1}"
{:04d}
'{0..1 log 3}'
'{1..2 log 1}'
{1..1000000}
'at {rank}'
"""


def outcome_of(line: str) -> Iterator[str]:
    """Yield the arguments of each trial, or why there is none."""
    try:
        trials = trials_of(*shlex.split(line))
    except ClusterError as error:
        yield f"    error {error.exit_code.value}: {error.message}"
    else:
        yield from (f"    {shlex.join(trial)}" for trial in trials)


def test_braces_stand_for_values_and_an_error_names_the_argument_and_the_position() -> None:
    """Braces of JSON stay, those written twice stand for themselves, and the last parameter varies fastest."""
    lines = [shown for line in ARGUMENTS.strip().splitlines() for shown in (line, *outcome_of(line))]
    golden("sweep-arguments.txt", "\n".join(lines))


def test_a_number_of_many_digits_is_no_range() -> None:
    with pytest.raises(ClusterError, match="this is not a range"):
        parse_arguments([f"{{1..{'9' * 5000}}}"])


def test_parameters_are_named_after_their_options() -> None:
    arguments = ("--lr", "{1,2}", "--batch={3,4}x{5,6}", "{7,8}", "optimizer.name={a,b}", "-m", "{1..2}")
    assert list(parse_arguments(arguments).grid) == ["lr", "batch", "batch-2", "argument-4", "optimizer.name", "m"]
    grid = parse_arguments(("--lr-2={1,2}", "--lr={3,4}", "--lr={5,6}", "--lr-2={7,8}")).grid
    assert grid == {"lr-2": ("1", "2"), "lr": ("3", "4"), "lr-3": ("5", "6"), "lr-2-2": ("7", "8")}


def test_a_name_is_the_value_of_a_column() -> None:
    assert parse_arguments(["{lr}"], ["lr"]).fill({"lr": "1e-3"}) == ["1e-3"]
    assert parse_arguments(["{learning rate}"], ["learning rate"]).names == {"learning rate"}


def test_a_column_has_no_second_values() -> None:
    with pytest.raises(ClusterError, match="'lr' is a column of the file and has values among the arguments too"):
        parse_arguments(["--lr", "{1,2}"], ["lr"])


def test_combinations_are_drawn_by_their_numbers() -> None:
    grid, rows = {"a": ("1", "2", "3"), "b": ("x", "y")}, [{"row": "1"}, {"row": "2"}]
    every = make_trials(rows, grid, None, nothing)
    assert len(every) == 12
    drawn = make_trials(rows, grid, 3, lambda numbers, count: [numbers[-1], 0, 7][:count])
    assert drawn == (every[11], every[0], every[7])


def test_there_are_not_more_trials_than_a_sweep_has() -> None:
    grid = {name: tuple(map(str, range(1000))) for name in "abc"}
    with pytest.raises(ClusterError, match="1,000,000,000 trials"):
        make_trials([{}], grid, None, nothing)
    sample = random.Random(0).sample
    assert len(make_trials([{}], grid, settings.SWEEP_TRIALS_MAX, sample)) == settings.SWEEP_TRIALS_MAX
    with pytest.raises(ClusterError, match="only 2 combinations"):
        make_trials([{}], {"a": ("1", "2")}, 3, sample)
    with pytest.raises(ClusterError, match="too many to draw from"):
        make_trials([{}], {str(number): ("1", "2") for number in range(64)}, 3, sample)


def test_numbers_are_values_and_other_texts_stay_texts() -> None:
    texts = ["1", "0.1", "1e-3", "007", "NaN", "true", "adam", "[1]", "Infinity"]
    assert [to_value(text) for text in texts] == [1, 0.1, 0.001, "007", "NaN", "true", "adam", "[1]", "Infinity"]


def test_a_file_is_csv_or_json_lines() -> None:
    assert parse_trials(b'\xef\xbb\xbf\nlr, batch\r\n0.1, 32\r\n\n , \n"a,b",64\n', "params.csv") == (
        {"lr": "0.1", "batch": "32"},
        {"lr": "a,b", "batch": "64"},
    )
    assert parse_trials(b'{"lr": 1e-3, "layers": [1, 2]}\n\n{"layers": "x", "lr": "0.10"}\n', "params") == (
        {"lr": "0.001", "layers": "[1, 2]"},
        {"layers": "x", "lr": "0.10"},
    )
    assert parse_trials('{"a": "\u2028"}\r\n{"a": "b"}'.encode(), "params") == ({"a": "\u2028"}, {"a": "b"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "params.csv: names no trials"),
        (b"lr\n", "params.csv: names no trials"),
        (b"lr,batch\n1,2\n1\n", "params.csv:3: 1 value for 2 columns"),
        (b"lr,,x\n", "params.csv:1: a column has no name"),
        (b"lr,lr\n", "params.csv:1: two columns are named 'lr'"),
        (b'lr\n"a\n', "params.csv:2: unexpected end of data"),
        (b"lr\n1\n\xff\n", "params.csv:3: this is not UTF-8 text"),
        (b'{"a": 1}\n{"a": 1\n', "params.csv:2: this is not JSON"),
        (b'{"a": 1}\n[1]\n', "params.csv:2: this is not an object"),
        (b'[{"a": 1}]\n', "params.csv:1: this is not an object"),
        (b'{"a": 1}\n{"b": 1}\n', "params.csv:2: not all lines have the key 'a'"),
    ],
)
def test_an_error_in_a_file_names_the_line(data: bytes, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_trials(data, "params.csv")
    assert message in caught.value.message
