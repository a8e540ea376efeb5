"""Which truth value lets a loop go on, where code reads one to decide whether the loop ends.

A generation ends when all of its sequences have ended, or after a largest number of tokens. Only
the second is known, so the loop is to run to that bound. The code around the read says whether it
decides about a loop, and whether that loop has another end.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from wavecast.frameworks.pytorch.recording.user_lines import is_ours

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_LOOPS = (ast.For, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LEAVING = (ast.Break, ast.Return, ast.Raise)


def going_on() -> bool | None:
    """The value to read now so that a loop goes on to its bound. None if the read decides none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        is_ours(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_TORCH)
    ):
        frame = frame.f_back
    return None if frame is None else _going_on(frame.f_code, frame.f_lasti)


@cache
def _going_on(code: CodeType, instruction: int) -> bool | None:
    path = _path_to(code, instruction // 2)
    if path and isinstance(path[-1], ast.stmt):
        # Python 3.11 gives a jump the place of its statement. The value was made just before.
        path = _path_to(code, instruction // 2 - 1)
    places = [i for i, node in enumerate(path) if isinstance(node, ast.stmt)]
    if not places:
        return None
    statement, tests = path[places[-1]], path[places[-1] + 1 :]
    if not isinstance(statement, ast.If | ast.While) or tests[:1] != [statement.test]:
        return None
    if not all(isinstance(node, ast.BoolOp | ast.UnaryOp) for node in tests[:-1]):
        return None  # the value is compared or counted first
    loop = statement if isinstance(statement, ast.While) else _loop_around(path[: places[-1]])
    goes = isinstance(statement, ast.While) or _goes_where(statement)
    if loop is None or goes is None or not _has_other_end(loop, statement):
        return None
    negations = sum(isinstance(getattr(node, "op", None), ast.Not) for node in tests[:-1])
    return goes if negations % 2 == 0 else not goes


@cache
def _tree(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _path_to(code: CodeType, index: int) -> list[ast.AST]:
    """The syntax nodes around an instruction's piece of code, the outermost first."""
    first, last, begin, end = next(islice(code.co_positions(), index, None))
    if first is None or last is None or begin is None or end is None:
        return []

    def holds(node: Any) -> bool:
        if not hasattr(node, "end_lineno"):
            return False
        span = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return bool(span[0] <= (first, begin) and (last, end) <= span[1])

    path: list[ast.AST] = []
    node: ast.AST | None = _tree(code.co_filename)
    while node is not None:
        node = next(filter(holds, ast.iter_child_nodes(node)), None)
        path += [] if node is None else [node]
    return path


def _loop_around(path: Sequence[ast.AST]) -> ast.For | ast.While | None:
    """The innermost loop of a function on the path to a statement in it."""
    for node in reversed(path):
        if isinstance(node, _SCOPES):
            return None
        if isinstance(node, _LOOPS):
            return node
    return None


def _goes_where(statement: ast.If) -> bool | None:
    """Whether the loop goes on where the condition is true; None if it does not decide that."""
    leaves = [
        bool(part) and isinstance(part[-1], _LEAVING) for part in (statement.body, statement.orelse)
    ]
    return None if leaves[0] == leaves[1] else leaves[1]


def _has_other_end(loop: ast.For | ast.While, statement: ast.stmt) -> bool:
    """Whether a loop ends without a statement's decision, or with another part of it."""
    test = statement.test if isinstance(statement, ast.If | ast.While) else None
    if isinstance(loop, ast.For) or isinstance(_positive(test), ast.BoolOp):
        return True
    if loop is not statement and not isinstance(loop.test, ast.Constant):
        return True
    return any(_ends(loop.body, statement))


def _positive(test: ast.expr | None) -> ast.expr | None:
    return test.operand if isinstance(test, ast.UnaryOp) else test


def _ends(body: Sequence[ast.AST], deciding: ast.stmt, nested: bool = False) -> Iterator[bool]:
    """True for each statement that leaves a loop, but for the one that the read decides."""
    for node in body:
        if isinstance(node, _SCOPES):
            continue
        if isinstance(node, _LEAVING) and not (nested and isinstance(node, ast.Break)):
            yield True
        parts = list(ast.iter_child_nodes(node))
        if node is deciding and isinstance(node, ast.If):
            parts = [*(node.orelse if _goes_where(node) is False else node.body)]
        yield from _ends(parts, deciding, nested or isinstance(node, _LOOPS))
