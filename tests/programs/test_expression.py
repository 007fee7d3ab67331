"""The small language of `run graph`: what it computes, against Python, and its mistakes with their places."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs.expression import Expression, parse

COMPUTE: dict[str, Callable[..., float]] = {
    "copy": lambda value: value,
    "negative": operator.neg,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
}


def value_of(program: Expression) -> dict[str, Any]:
    """The values of a program's names, its operations done by Python."""
    values: list[Any] = []
    for each in program.operations:
        if each.operator == "number":
            values.append(each.number)
        else:
            values.append(COMPUTE[each.operator](*(values[operand] for operand in each.operands)))
    return {name: values[at] for name, at in program.names.items()}


def mistake_in(source: str, x: float | None = None) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        parse(source, {} if x is None else {"x": x})
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 2; y1 = x + 300; y2 = x - 66; y = y1 + y2", {"x": 2, "y1": 302, "y2": -64, "y": 238}),
        ("x = 5; (x - 8) * (x + 1)", {"x": 5, "result": -18}),
        ("1", {"result": 1}),
        ("\n a=1\n;; b = (a\n + 1) ;\n\n", {"a": 1, "b": 2}),
        ("x = 3\ny = x\ny", {"x": 3, "y": 3, "result": 3}),
        ("result = 1; result2 = 2; result + result2", {"result": 1, "result2": 2, "result3": 3}),
        ("-2 ** 2", {"result": -4}),
        ("2 ** -1", {"result": 0.5}),
        ("2 ** 3 ** 2", {"result": 512}),
        ("2 - 3 - 4 / 2 / 2", {"result": -2}),
        ("--+-1.5e1", {"result": -15}),
        (".5 + 5. + 1E2", {"result": 105.5}),
        ("Y = 1; y = 2; end = Y - y", {"Y": 1, "y": 2, "end": -1}),
        # What Python refuses or reserves:
        ("010 + 1", {"result": 11}),
        ("lambda = 2; lambda + 1", {"lambda": 2, "result": 3}),
        ("None = 3; if = None; not = -if ** 2", {"None": 3, "if": 3, "not": -9}),
    ],
)
def test_values(source: str, expected: dict[str, float]) -> None:
    program = parse(source)
    assert value_of(program) == expected
    assert program.result == list(expected)[-1]


@pytest.mark.parametrize(
    ("source", "expected", "result"),
    [
        ("x = 2; y = x + 1", {"x": 7, "y": 8}, "y"),
        ("x + 1", {"x": 7, "result": 8}, "result"),
        ("y = x; x = 2 * x", {"x": 7, "y": 7}, "x"),
        ("a = 1; x = a + a; b = a - x", {"a": 1, "x": 7, "b": -6}, "b"),
    ],
)
def test_an_override_replaces_the_assigned_value(source: str, expected: dict[str, float], result: str) -> None:
    program = parse(source, {"x": 7.0})
    assert value_of(program) == expected
    assert program.result == result


def test_every_name_has_an_operation_of_its_own_and_hints_have_the_existing_names() -> None:
    program = parse("a = 1; b = a; c = (b); d = c + a")
    assert len(set(program.names.values())) == 4
    assert all(program.operations[at].name == name for name, at in program.names.items())
    assert mistake_in("a = 1; b = 2; c").hint == "Names with a value here: a, b."
    assert mistake_in("c + 1").hint == "Write c = … before it."
    error = mistake_in("a = 1; b = a", x=7)
    assert error.message == "x is given a value, but the expression has no x"
    assert error.hint == "Its names are a, b."


@pytest.mark.parametrize(
    ("source", "place", "message"),
    [
        ("", "1:1", "there is no expression"),
        (" ;\n; ", "2:3", "there is no expression"),
        ("x = 5; y + 1", "1:8", "y has no value"),
        ("x = x + 1", "1:5", "x has no value"),
        ("x = 1\nx = 2", "2:1", "x already has a value"),
        ("x =", "1:4", "the end where a number, a name or ( should be"),
        ("1 +\n2", "1:4", "the line's end where a number, a name or ( should be"),
        ("2x", "1:2", "'x' where an operator or ; should be"),
        ("1)", "1:2", "')' where an operator or ; should be"),
        ("a = (1 + 2", "1:11", "the end where an operator or ) should be"),
        ("x == 2", "1:4", "'=' where a number, a name or ( should be"),
        ("1 + 2 = x", "1:7", "'=' where an operator or ; should be"),
        ("a = 1\n  a + 1\nb = 2", "2:3", "only the last statement can have no name"),
        ("x = 2 ² 3", "1:7", "'²' cannot be part of an expression"),
        ("_x = 2", "1:1", "'_' cannot be part of an expression"),
        ("x[0]", "1:2", "'[' cannot be part of an expression"),
        ("٣ + 1", "1:1", "'٣' cannot be part of an expression"),
        ("1 + 1e999", "1:5", "this number is too large"),
        ("9" * 4000, "1:1", "this number is too large"),
        # What Python accepts and this language does not:
        ("1_000", "1:2", "'_' cannot be part of an expression"),
        ("0x10", "1:2", "'x10' where an operator or ; should be"),
        ("1j", "1:2", "'j' where an operator or ; should be"),
        ("a = 1; a if b else c", "1:10", "'if' where an operator or ; should be"),
        ("not 1", "1:1", "not has no value"),
        ("None + 1", "1:1", "None has no value"),
        ("f = 1; f(x)", "1:9", "'(' where an operator or ; should be"),
        ("()", "1:2", "')' where a number, a name or ( should be"),
        ("7 // 2", "1:4", "'/' where a number, a name or ( should be"),
        ("x = 1; y = x = 2", "1:14", "'=' where an operator or ; should be"),
        ("x = 1; (x) = 2", "1:12", "'=' where an operator or ; should be"),
        ("(x := 1)", "1:4", "':' cannot be part of an expression"),
        ("1 < 2", "1:3", "'<' cannot be part of an expression"),
        ("1, 2", "1:2", "',' cannot be part of an expression"),
        ("x = 1  # one", "1:8", "'#' cannot be part of an expression"),
        ("1 + \\\n1", "1:5", "'\\\\' cannot be part of an expression"),
        ('x = "1"', "1:5", "'\"' cannot be part of an expression"),
        ("é = 1", "1:1", "'é' cannot be part of an expression"),
        ("1 +\f2", "1:4", "'\\x0c' cannot be part of an expression"),
    ],
)
def test_a_syntax_error_has_its_position(source: str, place: str, message: str) -> None:
    first, excerpt, caret = mistake_in(source).message.split("\n")
    assert first == f"expression:{place}: {message}"
    line, column = map(int, place.split(":"))
    assert caret.index("^") == column + 1
    assert excerpt.strip() in source.split("\n")[line - 1]
    if column <= len(source.split("\n")[line - 1]):
        assert excerpt[caret.index("^")] == source.split("\n")[line - 1][column - 1]


@pytest.mark.parametrize(
    "source", ["(" * 4000, "(" * 1900 + "1" + ")" * 1900, "-" * 4000, "-" * 3000 + "1", "1" + "**2" * 1300]
)
def test_an_expression_that_is_nested_too_deeply_is_rejected(source: str) -> None:
    assert mistake_in(source).message == "the expression is nested too deeply"


def test_the_deepest_and_longest_expressions_and_an_error_far_to_the_right() -> None:
    assert value_of(parse("(" * 60 + "1" + ")" * 60)) == {"result": 1}
    assert value_of(parse("1" + "+1" * 1999)) == {"result": 2000}
    for source in ("1" + "+1" * 2000, "(" * 10_000 + "1" + ")" * 10_000):
        first, excerpt, caret = mistake_in(source).message.split("\n")
        assert first == "expression:1:4001: an expression has at most 4,000 characters"
        assert excerpt[caret.index("^")] == source[4000]
    _, excerpt, caret = mistake_in("1 + " * 100 + "? + 1" + " + 1" * 100).message.split("\n")
    assert excerpt[caret.index("^")] == "?"
    assert len(excerpt) < 90


# With a point each, so that Python computes in floats too.
NUMBERS = st.one_of(st.integers(0, 1000).map("{}.".format), st.floats(0, 1000).map(repr), st.sampled_from("xyz"))
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", " * ", "/", " - -"]), inner).map("".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        st.tuples(inner, st.integers(0, 3)).map(lambda pair: f"({pair[0]}) ** {pair[1]}."),
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(EXPRESSIONS, st.floats(-9, 9), st.floats(-9, 9), st.floats(-9, 9))
def test_an_expression_has_the_value_that_it_has_in_python(text: str, x: float, y: float, z: float) -> None:
    source = f"x = {x!r}; y = {y!r}\nz = {z!r}; {text}"
    program = parse(source)
    try:
        expected = eval(text, {"x": x, "y": y, "z": z})
    except (ZeroDivisionError, OverflowError) as error:
        with pytest.raises(type(error)):
            value_of(program)
        return
    assert value_of(program)["result"] == expected or math.isnan(expected)


@settings(deadline=None)
@given(st.text(alphabet="xy1.e+-*/()=; \n", max_size=40))
def test_any_text_is_parsed_or_rejected_with_a_position(source: str) -> None:
    try:
        program = parse(source)
    except ClusterError as error:
        place = re.match(r"expression:(\d+):(\d+): ", error.message)
        line, column = map(int, place.groups()) if place else (0, 0)
    else:
        assert program.result in program.names
        return
    assert 1 <= line <= source.count("\n") + 1
    assert 1 <= column <= len(source.split("\n")[line - 1]) + 1
