"""The tail stays short: files, functions and classes within the house limits."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("inferwatch", "collectors", "embedded_engine")
FILE_LINES, FUNCTION_LINES, CLASS_LINES = 300, 40, 200


def sources() -> list[Path]:
    return [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def too_long(kind: tuple[type[ast.stmt], ...], limit: int) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, kind) and lines_of(node) > limit
    ]


def test_files_are_short() -> None:
    long = [p for p in sources() if len(p.read_text("utf-8").splitlines()) > FILE_LINES]

    assert [str(path.relative_to(ROOT)) for path in long] == []


def test_functions_are_short() -> None:
    assert too_long((ast.FunctionDef, ast.AsyncFunctionDef), FUNCTION_LINES) == []


def test_classes_are_short() -> None:
    assert too_long((ast.ClassDef,), CLASS_LINES) == []
