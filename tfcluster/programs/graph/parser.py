"""The tokenizer and parser of `run graph`, which turn `x = 2; y = (x + 300) * -x` into named operations.

Every syntax error shows its line and column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfcluster import settings
from tfcluster.core.text import pluralize
from tfcluster.errors import ClusterError, ExitCode

_TOKEN = re.compile(
    r"(?P<blank>[ \t\r]+)|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<sign>\*\*|[-+*/()=;\n])"
)
_SEPARATORS = (";", "\n")
_BARE_NAME = "result"


@dataclass(frozen=True)
class Operation:
    """One operation of the computation.

    Attributes:
        operator: `number`, `copy`, `negative`, `+`, `-`, `*`, `/` or `**`.
        operands: The indices of its operands in `Expression.operations`.
        number: The value of a `number`.
        name: The name to which the statement with this operation assigns.
        at: Its offset in the source.
    """

    operator: str
    operands: tuple[int, ...]
    number: float
    name: str
    at: int


@dataclass(frozen=True)
class Expression:
    """A parsed program.

    Attributes:
        source: The text.
        operations: All operations in topological order: each comes after its operands.
        names: The index of the operation that is the value of a name, by name; no two names share an operation.
        result: The name whose value is the result of the program.
    """

    source: str
    operations: tuple[Operation, ...]
    names: dict[str, int]
    result: str


def parse(source: str, given: Mapping[str, float] | None = None) -> Expression:
    """Parse statements `name = expression`, separated by semicolons or newlines.

    The last statement may be an expression without a name; its name is then `result`. Operator precedence is that
    of Python: `**` binds tighter than signs, these tighter than `*` and `/`, and these tighter than `+` and `-`.

    Args:
        source: The text.
        given: Values of names, which override what the text assigns to these names.

    Returns:
        The parsed program.

    Raises:
        ClusterError: The text has a syntax error (usage error); the message shows line, column and a caret. Or a
            name in `given` does not occur in the text.
    """
    return _Parser(source, dict(given or {})).program()


def syntax_error(
    source: str, at: int, message: str, hint: str = "", exit_code: ExitCode = ExitCode.USAGE
) -> ClusterError:
    """Return an error that shows the position of a problem in a source: line, column and a caret.

    Args:
        source: The whole text.
        at: The offset of the problem in the text.
        message: What is wrong there.
        hint: What to write instead.
        exit_code: The exit code of the command.
    """
    line, start = source.count("\n", 0, at) + 1, source.rfind("\n", 0, at) + 1
    column = at - start
    text = source[start:].partition("\n")[0].replace("\t", " ")
    left = max(0, column - settings.ERROR_CONTEXT_CHARS)
    excerpt = text[left : column + settings.ERROR_CONTEXT_CHARS].rstrip()
    return ClusterError(
        f"expression:{line}:{column + 1}: {message}\n  {excerpt}\n  {' ' * (column - left)}^",
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
    """A recursive-descent parser of one source, with one method for each level of operator precedence."""

    def __init__(self, source: str, given: dict[str, float]) -> None:
        self._source = source
        self._given = given
        self._unused = set(given)
        self._tokens = _tokens(source)
        self._next = 0
        self._depth = 0
        self._operations: list[Operation] = []
        self._names: dict[str, int] = {}
        self._name = ""

    def program(self) -> Expression:
        for name, value in self._given.items():
            self._name = name
            self._names[name] = self._number(0, value)
        self._name = ""
        while self._token.kind != "end":
            if not self._take(*_SEPARATORS):
                self._statement()
        if not self._name:
            raise self._mistake(self._token, "there is no expression", "Write one, as 'x = 5; (x - 8) * (x + 1)'.")
        for name in sorted(self._unused):
            raise ClusterError(
                f"{name} is given a value, but the expression has no {name}",
                hint=f"Its names are {', '.join(each for each in self._names if each not in self._unused)}.",
                exit_code=ExitCode.USAGE,
            )
        return Expression(self._source, tuple(self._operations), self._names, self._name)

    def _statement(self) -> None:
        start, first = self._token, len(self._operations)
        named = start.kind == "name" and self._tokens[self._next + 1].text == "="
        self._name = start.text if named else self._free_name()
        if named:
            self._next += 2
            if self._name in self._names and self._name not in self._given:
                raise self._mistake(start, f"{self._name} has a value already", "Give the new value a name of its own.")
        value = self._sum()
        if self._token.kind != "end" and not self._take(*_SEPARATORS):
            raise self._mistake(self._token, f"{self._token} where an operator or ; should be")
        if not named and any(token.text not in _SEPARATORS for token in self._tokens[self._next : -1]):
            raise self._mistake(start, "only the last statement may have no name", "Write it as name = expression.")
        if named and self._name in self._given:
            self._unused.discard(self._name)
            del self._operations[first:]
        else:
            # A name that only aliases another one gets its own `copy` operation, which can be placed on a device.
            self._names[self._name] = self._emit("copy", start, value) if value < first else value

    def _free_name(self) -> str:
        name, number = _BARE_NAME, 2
        while name in self._names:
            name, number = f"{_BARE_NAME}{number}", number + 1
        return name

    def _sum(self) -> int:
        value = self._product()
        while token := self._take("+", "-"):
            value = self._emit(token.text, token, value, self._product())
        return value

    def _product(self) -> int:
        value = self._signed()
        while token := self._take("*", "/"):
            value = self._emit(token.text, token, value, self._signed())
        return value

    def _signed(self) -> int:
        token = self._take("+", "-")
        if token is None:
            return self._power()
        value = self._nested(token, self._signed)
        return self._emit("negative", token, value) if token.text == "-" else value

    def _power(self) -> int:
        value = self._atom()
        token = self._take("**")
        return self._emit("**", token, value, self._nested(token, self._signed)) if token else value

    def _atom(self) -> int:
        token = self._token
        if self._take("("):
            value = self._nested(token, self._sum)
            if not self._take(")"):
                raise self._mistake(self._token, f"{self._token} where an operator or ) should be")
            return value
        self._next += 1
        if token.kind == "number":
            if not math.isfinite(float(token.text)):
                raise self._mistake(token, "this number is too large", "The largest one is about 1.8e308.")
            return self._number(token.at, float(token.text))
        if token.kind != "name":
            raise self._mistake(token, f"{token} where a number, a name or ( should be")
        if token.text not in self._names:
            names = ", ".join(self._names)
            hint = f"Names with a value here: {names}." if names else f"Write {token.text} = … before it."
            raise self._mistake(token, f"{token.text} has no value", hint)
        self._unused.discard(token.text)
        return self._names[token.text]

    def _nested(self, token: _Token, read: Callable[[], int]) -> int:
        self._depth += 1
        if self._depth > settings.EXPRESSION_MAX_DEPTH:
            raise self._mistake(
                token, f"this is nested more than {settings.EXPRESSION_MAX_DEPTH} deep", "Give parts of it names."
            )
        value = read()
        self._depth -= 1
        return value

    def _number(self, at: int, value: float) -> int:
        self._operations.append(Operation("number", (), value, self._name, at))
        return len(self._operations) - 1

    def _emit(self, operator: str, token: _Token, *operands: int) -> int:
        if len(self._operations) >= settings.EXPRESSION_MAX_OPERATIONS:
            raise self._mistake(
                token, f"there are more than {pluralize(settings.EXPRESSION_MAX_OPERATIONS, 'operation')}"
            )
        self._operations.append(Operation(operator, operands, 0.0, self._name, token.at))
        return len(self._operations) - 1

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> _Token | None:
        """Consume and return the next token if its text is one of these; else return None."""
        token = self._token
        if token.text not in texts:
            return None
        self._next += 1
        return token

    def _mistake(self, token: _Token, message: str, hint: str = "") -> ClusterError:
        return syntax_error(self._source, token.at, message, hint)


def _tokens(source: str) -> list[_Token]:
    """Split the source into tokens; newlines inside parentheses count as blanks."""
    tokens: list[_Token] = []
    at = depth = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            hint = "It is made of + - * / ** ( ), numbers, and names of letters, digits and _."
            raise syntax_error(source, at, f"{source[at]!r} is not of this language", hint)
        text, kind = match.group(), str(match.lastgroup)
        depth += {"(": 1, ")": -1}.get(text, 0)
        if kind != "blank" and not (text == "\n" and depth > 0):
            tokens.append(_Token(kind, text, at))
        at = match.end()
    return [*tokens, _Token("end", "", at)]
