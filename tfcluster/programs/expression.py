"""Parse the expression of `run graph`, such as `x = 2; y = (x + 300) * -x`, into named operations.

The parser descends recursively, one function for each level of precedence. Every error shows its line and column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.programs import settings

_TOKEN = re.compile(
    r"(?P<blank>[ \t\r]+)|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<sign>\*\*|[-+*/()=;\n])"
)
_SEPARATORS = (";", "\n")
_SIGNS = ("+", "-")
_PRECEDENCES = {"+": 1, "-": 1, "*": 2, "/": 2}
_UNNAMED = "result"


@dataclass(frozen=True)
class Operation:
    """One operation of the computation."""

    operator: str  # `number`, `copy`, `negative`, `+`, `-`, `*`, `/` or `**`
    operands: tuple[int, ...]  # indices in `Expression.operations`
    number: float  # value of a `number`
    name: str  # the name to which the statement with this operation assigns
    at: int  # offset in the source


@dataclass(frozen=True)
class Expression:
    """A parsed program."""

    source: str
    operations: tuple[Operation, ...]  # in topological order: each comes after its operands
    names: dict[str, int]  # index of the operation that is the value of a name; no two names share an operation
    result: str  # the name whose value is the result of the program


def parse(source: str, overrides: Mapping[str, float] | None = None) -> Expression:
    """Parse statements `name = expression`, separated by semicolons or newlines.

    The last statement may be an expression without a name; its name is then `result`. Operator precedence is that
    of Python: `**` binds tighter than signs, these tighter than `*` and `/`, and these tighter than `+` and `-`.

    `overrides` replaces the values of names. A name that does not occur in the text is a usage error, as is a syntax
    error.
    """
    if len(source) > settings.EXPRESSION_MAX_CHARS:
        message = f"an expression has at most {settings.EXPRESSION_MAX_CHARS:,} characters"
        raise syntax_error(source, settings.EXPRESSION_MAX_CHARS, message)
    try:
        return _Parser(source, dict(overrides or {})).parse()
    except RecursionError:
        raise usage_error("the expression is nested too deeply", "Give parts of it names.") from None


def syntax_error(
    source: str, at: int, message: str, hint: str = "", exit_code: ExitCode = ExitCode.USAGE
) -> ClusterError:
    """Return an error that shows the line, the column and a caret of the offset `at` in a source."""
    line, start = source.count("\n", 0, at) + 1, source.rfind("\n", 0, at) + 1
    column = at - start
    text = source[start:].partition("\n")[0].replace("\t", " ")
    first = max(0, column - settings.EXPRESSION_CONTEXT_CHARS)
    excerpt = text[first : column + settings.EXPRESSION_CONTEXT_CHARS].rstrip()
    return ClusterError(
        f"expression:{line}:{column + 1}: {message}\n  {excerpt}\n  {' ' * (column - first)}^",
        hint=hint,
        exit_code=exit_code,
    )


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        return {"": "the end", "\n": "the line's end"}.get(self.text, repr(self.text))


class _Parser:
    def __init__(self, source: str, overrides: dict[str, float]) -> None:
        self._source = source
        self._overrides = overrides
        self._unused = set(overrides)
        self._tokens = _tokenize(source)
        self._operations: list[Operation] = []
        self._names: dict[str, int] = {}
        self._name = ""
        self._at = 0  # index of the next token

    def parse(self) -> Expression:
        for name, value in self._overrides.items():
            self._name = name
            self._names[name] = self._emit("number", 0, number=value)
        self._name = ""
        while (token := self._tokens[self._at]).kind != "end":
            if token.text in _SEPARATORS:
                self._at += 1
            else:
                self._parse_statement(token)
        if not self._name:
            raise self._error(token, "there is no expression", "Write one, such as 'x = 5; (x - 8) * (x + 1)'.")
        for name in sorted(self._unused):
            raise usage_error(
                f"{name} is given a value, but the expression has no {name}",
                f"Its names are {', '.join(each for each in self._names if each not in self._unused)}.",
            )
        return Expression(self._source, tuple(self._operations), self._names, self._name)

    def _parse_statement(self, start: _Token) -> None:
        first = len(self._operations)
        is_named = start.kind == "name" and self._tokens[self._at + 1].text == "="
        self._name = start.text if is_named else self._free_name()
        if is_named:
            self._at += 2
            if self._name in self._names and self._name not in self._overrides:
                raise self._error(start, f"{self._name} already has a value", "Give the new value its own name.")
        value = self._parse_value()
        self._expect(";", *_SEPARATORS, "")
        if not is_named and any(token.text not in _SEPARATORS for token in self._tokens[self._at : -1]):
            raise self._error(start, "only the last statement can have no name", "Write it as name = expression.")
        if is_named and self._name in self._overrides:
            self._unused.discard(self._name)
            del self._operations[first:]
        else:
            # A name that only aliases another one gets its own `copy` operation, which can be placed on a device.
            self._names[self._name] = self._emit("copy", start.at, value) if value < first else value

    def _free_name(self) -> str:
        name, number = _UNNAMED, 2
        while name in self._names:
            name, number = f"{_UNNAMED}{number}", number + 1
        return name

    def _parse_value(self, precedence: int = 1) -> int:
        """Parse operands joined by operators of at least this precedence; return the index of the last operation."""
        value = self._parse_signed()
        while _PRECEDENCES.get((token := self._tokens[self._at]).text, 0) >= precedence:
            self._at += 1
            operand = self._parse_value(_PRECEDENCES[token.text] + 1)
            value = self._emit(token.text, token.at, value, operand)
        return value

    def _parse_signed(self) -> int:
        """Parse an operand with its signs and its exponent, which binds tighter than they do."""
        token = self._tokens[self._at]
        if token.text in _SIGNS:
            self._at += 1
            value = self._parse_signed()
            return self._emit("negative", token.at, value) if token.text == "-" else value
        value = self._parse_operand()
        if (token := self._tokens[self._at]).text == "**":
            self._at += 1
            value = self._emit("**", token.at, value, self._parse_signed())
        return value

    def _parse_operand(self) -> int:
        """Parse a number, a name or an expression in parentheses."""
        token = self._tokens[self._at]
        self._at += 1
        if token.kind == "number":
            if not math.isfinite(float(token.text)):
                raise self._error(token, "this number is too large", "The largest one is about 1.8e308.")
            return self._emit("number", token.at, number=float(token.text))
        if token.kind == "name":
            if token.text not in self._names:
                names = ", ".join(self._names)
                hint = f"Names with a value here: {names}." if names else f"Write {token.text} = … before it."
                raise self._error(token, f"{token.text} has no value", hint)
            self._unused.discard(token.text)
            return self._names[token.text]
        if token.text != "(":
            raise self._error(token, f"{token} where a number, a name or ( should be")
        value = self._parse_value()
        self._expect(")", ")")
        self._at += 1
        return value

    def _expect(self, described: str, *texts: str) -> None:
        if (token := self._tokens[self._at]).text not in texts:
            raise self._error(token, f"{token} where an operator or {described} should be")

    def _emit(self, operator: str, at: int, *operands: int, number: float = 0.0) -> int:
        self._operations.append(Operation(operator, operands, number, self._name, at))
        return len(self._operations) - 1

    def _error(self, token: _Token, message: str, hint: str = "") -> ClusterError:
        return syntax_error(self._source, token.at, message, hint)


def _tokenize(source: str) -> list[_Token]:
    """Split the source into tokens; newlines inside parentheses count as blanks."""
    tokens: list[_Token] = []
    at = depth = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            hint = "An expression has + - * / ** ( ), numbers, and names of letters, digits and _."
            raise syntax_error(source, at, f"{source[at]!r} cannot be part of an expression", hint)
        text, kind = match.group(), str(match.lastgroup)
        depth += {"(": 1, ")": -1}.get(text, 0)
        if kind != "blank" and not (text == "\n" and depth > 0):
            tokens.append(_Token(kind, text, at))
        at = match.end()
    return [*tokens, _Token("end", "", at)]
