"""The parameters of a sweep: braces in a script's arguments, and the trials that they make.

    {a,b,c}               a list
    {1..10}               whole numbers, both ends included
    {0.1..0.001 log 5}    five numbers whose logarithms have the same distance
    {name}                the value of another parameter, or of a column of the sweep's file

Braces that are written twice stand for themselves, and a JSON object stays as it is.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfcluster import settings
from tfcluster.errors import usage_error
from tfcluster.records import record_class

#: Draws a number of different members of a range.
Sample = Callable[[range, int], Sequence[int]]
_DIGITS = r"\d{1,18}"
_NUMBER = rf"[+-]?(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][+-]?{_DIGITS})?"
_WHOLE = re.compile(rf"(-?{_DIGITS})\.\.(-?{_DIGITS})")
_LOG = re.compile(rf"({_NUMBER})\.\.({_NUMBER})\s+log\s+({_DIGITS})")
_NAME = re.compile(r"[A-Za-z_][\w .-]*")
_HINT = "Write {0.1,0.01}, {1..10} or {0.1..0.001 log 5}. To pass a literal brace, write it twice: {{ or }}."


@record_class(frozen=True)
class Parameter:
    """A pair of braces in an argument."""

    name: str
    values: tuple[str, ...] | None  # None for `{name}`: the value is that of a parameter or a column


@record_class(frozen=True)
class Template:
    """The arguments of a script, each as the texts and the parameters that it consists of."""

    arguments: tuple[tuple[str | Parameter, ...], ...]

    @property
    def grid(self) -> dict[str, tuple[str, ...]]:
        """Return the values of each parameter."""
        braces = (part for argument in self.arguments for part in argument if isinstance(part, Parameter))
        return {each.name: each.values for each in braces if each.values is not None}

    @property
    def names(self) -> set[str]:
        """Return the names of all parameters and columns that the arguments use."""
        return {part.name for argument in self.arguments for part in argument if isinstance(part, Parameter)}

    def fill(self, values: Mapping[str, str]) -> list[str]:
        """Return the arguments of a trial, given the values of its parameters."""
        return [
            "".join(values[part.name] if isinstance(part, Parameter) else part for part in argument)
            for argument in self.arguments
        ]


def parse_arguments(arguments: Sequence[str], columns: Sequence[str] = ()) -> Template:
    """Return the template of a script's arguments, or raise a ClusterError that names the argument and the position.

    `columns` are those of the sweep's file.
    """
    template = parse_template(arguments)
    _check_names(arguments, template, columns)
    return template


def parse_template(arguments: Sequence[str]) -> Template:
    """Return the template of arguments that `parse_arguments` has accepted before."""
    taken: set[str] = set()
    return Template(
        tuple(tuple(_parse(argument, _name_of(arguments, number), taken)) for number, argument in enumerate(arguments))
    )


def _check_names(arguments: Sequence[str], template: Template, columns: Sequence[str]) -> None:
    known = dict.fromkeys([*columns, *template.grid])
    if twice := [name for name in template.grid if name in columns]:
        raise usage_error(
            f"{twice[0]!r} is a column of the file and has values among the arguments too",
            f"Write {{{twice[0]}}} for the value of the column.",
        )
    for argument, parts in zip(arguments, template.arguments, strict=True):
        for part in parts:
            if isinstance(part, Parameter) and part.name not in known:
                where = f"{{{part.name}}} in {argument!r}:"
                hint = f"The parameters are {', '.join(known)}." if known else _HINT
                raise usage_error(f"{where} there is no parameter {part.name!r}", hint)


def _name_of(arguments: Sequence[str], number: int) -> str:
    """Return how a parameter in an argument is named: after its option, such as `lr` for `--lr {…}` and `--lr={…}`."""
    before = arguments[number].partition("{")[0]
    previous = arguments[number - 1] if number else ""
    option = before.partition("=")[0] if "=" in before else "" if "=" in previous else previous
    is_option = "=" in before or option.startswith("-")
    return (option.strip("-") if is_option else "") or f"argument-{number + 1}"


def _parse(argument: str, name: str, taken: set[str]) -> Iterator[str | Parameter]:
    """Yield the parts of an argument. `taken` has the names of all parameters with values so far."""
    at, text = 0, ""
    while at < len(argument):
        if argument.startswith(("{{", "}}"), at):
            text, at = text + argument[at], at + 2
        elif argument[at] != "{":
            text, at = text + argument[at], at + 1
        elif end := _end_of_json(argument, at):
            text, at = text + argument[at:end], end
        else:
            end = argument.find("}", at) + 1 or len(argument)
            brace = argument[at:end]
            values = _parse_brace(brace, f"{brace!r} in {argument!r}, character {at + 1}:")
            if text:
                yield text
            if values is None:
                yield Parameter(brace[1:-1].strip(), None)
            else:
                numbered = (f"{name}-{number}" for number in itertools.count(2))
                free = next(each for each in itertools.chain([name], numbered) if each not in taken)
                taken.add(free)
                yield Parameter(free, values)
            at, text = end, ""
    if text:
        yield text


def _end_of_json(argument: str, at: int) -> int | None:
    """Return the end of the JSON object that begins at a position; None if none does."""
    try:
        return json.JSONDecoder().raw_decode(argument, at)[1]
    except (ValueError, RecursionError):
        return None


def _parse_brace(brace: str, where: str) -> tuple[str, ...] | None:
    """Return the values that a pair of braces stands for; None if it names another parameter."""
    inner = brace[1:-1].strip()
    if "{" in inner:
        raise usage_error(f"{where} a brace inside a brace", "Write the outer ones twice, such as {{a: {1,2}}}.")
    if not brace.endswith("}"):
        raise usage_error(f"{where} the brace is not closed", _HINT)
    if "," in inner:
        return _parse_list(inner, where)
    if match := _WHOLE.fullmatch(inner):
        first, last = int(match[1]), int(match[2])
        _check_count(abs(last - first) + 1, where)
        step = 1 if last >= first else -1
        return tuple(map(str, range(first, last + step, step)))
    if match := _LOG.fullmatch(inner):
        return _parse_log(match[1], match[2], int(match[3]), where)
    if ".." in inner:
        raise usage_error(
            f"{where} this is not a range",
            "A range is {1..10}, of whole numbers, or {0.1..0.001 log 5}, of five numbers. Other values are listed: "
            "{0.1,0.2}.",
        )
    if not _NAME.fullmatch(inner):
        raise usage_error(f"{where} this is neither a list nor a range nor a name", _HINT)
    return None


def _parse_list(inner: str, where: str) -> tuple[str, ...]:
    values = tuple(value.strip() for value in inner.split(","))
    if "" in values:
        raise usage_error(f"{where} a value is empty", _HINT)
    if any(value[0] in "'\"" for value in values):
        raise usage_error(f"{where} a value has quotes", "Values are written without quotes: {adam,sgd}.")
    if any(_WHOLE.match(value) for value in values):
        raise usage_error(f"{where} a range in a list", "List all values, or write the range alone: {1..10}.")
    _check_count(len(values), where)
    return values


def _parse_log(first: str, last: str, count: int, where: str) -> tuple[str, ...]:
    low, high = float(first), float(last)
    if not (0 < low < math.inf and 0 < high < math.inf):
        raise usage_error(f"{where} the ends of a logarithmic range must be more than 0", _HINT)
    if count < 2:
        raise usage_error(f"{where} a logarithmic range has at least two numbers", _HINT)
    _check_count(count, where)
    ends = math.log(low), math.log(high)
    inside = (math.exp(ends[0] + (ends[1] - ends[0]) * number / (count - 1)) for number in range(1, count - 1))
    return (first, *map(_format_number, inside), last)


def _format_number(value: float) -> str:
    """Return a number with six digits; a whole one as options of scripts expect it."""
    value = float(f"{value:.6g}")
    return str(int(value)) if value.is_integer() and value < 1e15 else repr(value)


def _check_count(count: int, where: str) -> None:
    if count > settings.SWEEP_VALUES_MAX:
        raise usage_error(f"{where} these are {count:,} values; at most {settings.SWEEP_VALUES_MAX:,} are possible")


def make_trials(
    rows: Sequence[Mapping[str, str]], grid: Mapping[str, Sequence[str]], count: int | None, sample: Sample
) -> tuple[dict[str, str], ...]:
    """Return the parameters of each trial: all combinations of a file's rows and a grid, or `count` drawn ones.

    The last parameter varies fastest. Trials that are drawn are in the order of the draw. `sample` draws numbers from a
    range, as `random.sample` does.
    """
    total = len(rows) * math.prod(map(len, grid.values()))
    if count is None:
        _check_total(total)
        return tuple(
            {**row, **dict(zip(grid, values, strict=True))}
            for row in rows
            for values in itertools.product(*grid.values())
        )
    if count > total:
        raise usage_error(f"--random {count}: there are only {total:,} combinations", "Leave it out to try all.")
    _check_total(count)
    if total > sys.maxsize:
        raise usage_error(f"--random {count}: these are {total:,} combinations, too many to draw from")
    return tuple(_combination(rows, grid, number) for number in sample(range(total), count))


def _check_total(total: int) -> None:
    if total > settings.SWEEP_TRIALS_MAX:
        raise usage_error(
            f"these are {total:,} trials; a sweep has at most {settings.SWEEP_TRIALS_MAX:,}",
            "`--random N --seed S` draws N of them.",
        )


def _combination(rows: Sequence[Mapping[str, str]], grid: Mapping[str, Sequence[str]], number: int) -> dict[str, str]:
    """Return the combination of a number, as `itertools.product` would count them."""
    chosen = {}
    for name, values in reversed(list(grid.items())):
        number, position = divmod(number, len(values))
        chosen[name] = values[position]
    return {**rows[number], **{name: chosen[name] for name in grid}}


def to_value(text: str) -> Any:
    """Return a parameter's value as JSON has it: a number if its text is one in JSON, else the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else text
