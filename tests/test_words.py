"""The glossary of CONTRIBUTING.md, held: one word for one thing, in prose and in names."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import wavecast

SOURCE = Path(wavecast.__file__).parent
ROOT = Path(__file__).parents[1]

# What we do not write, and what we write instead. Other meanings of the word are let through.
WORDS = {
    r"\bmatrix products?\b|\b(?:grouped|batched) products?\b": "matmul",
    r"\b(?:each|all|the) words? (?:go|goes|is sent|are sent|to its experts)\b": "token",
    r"\bdivisions? of (?:a|the) (?:product|tensor|matmul|weight)": "sharding",
    r"\bwhat (?:is|was) asked\b": "the request, the arguments",
}


def prose_of(file: Path) -> Iterator[tuple[int, str]]:
    """The comments and docstrings of a file, with their lines."""
    text = file.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.string.startswith('"""')
        if is_docstring or token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_docstrings_and_comments_keep_to_the_glossary() -> None:
    found = [
        f"{file.relative_to(SOURCE)}:{line}: {match[0]!r}; write {instead}"
        for file in sorted(SOURCE.rglob("*.py"))
        for line, prose in prose_of(file)
        for word, instead in WORDS.items()
        for match in re.finditer(word, prose, re.IGNORECASE)
    ]
    assert found == []


NOT_NOUNS = {"one", "found", "made", "told", "wanted", "begun", "possible"}
"""Names of variables that say nothing of what they hold."""
PUBLIC_ARGUMENTS = {("runs", "told"), ("integrations", "told")}
"""Arguments of public functions, by room, which keep their names."""


def names_of_variables(file: Path) -> Iterator[tuple[int, str]]:
    """The variables and arguments of a file, with their lines; fields of classes may be output."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {
        id(part.target) for each in classes for part in each.body if isinstance(part, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and id(node) not in fields
        ):
            yield node.lineno, node.id


def test_variables_are_nouns_of_the_field() -> None:
    empty = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for room in ("src", "lab")
        for file in sorted((ROOT / room).rglob("*.py"))
        for line, name in names_of_variables(file)
        if name in NOT_NOUNS
        if not any(part in PUBLIC_ARGUMENTS for part in ((p, name) for p in file.parts))
    ]
    assert empty == []
