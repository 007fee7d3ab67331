"""How much code there is: lines, logical lines, docstrings and comments of the package, in all and by folder.

A logical line is a NEWLINE token that does not end a docstring. A comment line has nothing else.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "tfcluster"
COLUMNS = ("lines", "logical", "code", "docstring", "comment")
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def docstrings_of(text: str) -> list[range]:
    """Return the lines of each docstring of a module."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented) and ast.get_docstring(node)]
    return [range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1) for node in nodes]


def count(text: str) -> Counter[str]:
    """Count the lines of a module by their kind."""
    docstrings = docstrings_of(text)
    docstring_lines = {line for each in docstrings for line in each}
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    code = {line for token in tokens if token.type not in _NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    return Counter(
        lines=len(text.splitlines()),
        logical=sum(token.type == tokenize.NEWLINE for token in tokens) - len(docstrings),
        code=len(code - docstring_lines),
        docstring=len(docstring_lines),
        comment=sum(line.lstrip().startswith("#") for line in text.splitlines()),
    )


def main() -> None:
    """Print a row for each folder, or for each module of the folder that is given, and the sum."""
    root = PACKAGE / sys.argv[1] if len(sys.argv) > 1 else PACKAGE
    rows: dict[str, Counter[str]] = {}
    for path in sorted(root.rglob("*.py")):
        row = rows.setdefault(path.relative_to(root).parts[0], Counter())
        row.update(count(path.read_text()))
    print(*(f"{column:>10}" for column in COLUMNS))
    total: Counter[str] = Counter()
    for name, row in rows.items():
        print(*(f"{row[column]:10}" for column in COLUMNS), "", name)
        total.update(row)
    print(*(f"{total[column]:10}" for column in COLUMNS), " in all")
    print(f"{total['docstring'] / total['code']:10.2f} docstring lines for a line of code")


if __name__ == "__main__":
    main()
