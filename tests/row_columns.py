"""Which lines of a file take a column of an SQL row by its number: for the house rule in `test_tidy.py`."""

from __future__ import annotations

import ast


class RowColumns(ast.NodeVisitor):
    """The lines of a function that take a column of an SQL row by its number. Rows are what `rows` and `row` return,
    what a variable of such a name holds, and what is taken from either by an assignment, a loop or an index."""

    def __init__(self) -> None:
        self.many, self.one = {"rows"}, {"row"}
        self.lines: set[int] = set()

    def is_many(self, node: ast.AST) -> bool:
        if isinstance(node, ast.IfExp):
            return self.is_many(node.body) or self.is_many(node.orelse)
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Slice) and self.is_many(node.value)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")
            return (called[2] == "rows" and "session" in called[0]) or (
                called[2] in ("sorted", "list", "reversed") and any(map(self.is_many, node.args))
            )
        return isinstance(node, ast.Name) and node.id in self.many

    def is_one(self, node: ast.AST) -> bool:
        if isinstance(node, ast.IfExp):
            return self.is_one(node.body) or self.is_one(node.orelse)
        if isinstance(node, ast.Subscript):
            return not isinstance(node.slice, ast.Slice) and self.is_many(node.value)
        if isinstance(node, ast.Call):
            return ast.unparse(node.func) == "row"
        return isinstance(node, ast.Name) and node.id in self.one

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {each.id for each in node.targets if isinstance(each, ast.Name)}
        self.many |= names if self.is_many(node.value) else set()
        self.one |= names if self.is_one(node.value) else set()
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.many |= {node.target.id} if self.is_many(node.value) else set()
        self.generic_visit(node)

    def of_loop(self, node: ast.For | ast.comprehension) -> None:
        if isinstance(node.target, ast.Name) and self.is_many(node.iter):
            self.one.add(node.target.id)

    def visit_For(self, node: ast.For) -> None:
        self.of_loop(node)
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        for each in getattr(node, "generators", ()):  # of a comprehension, before what is made of its rows
            self.of_loop(each)
        super().generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        bounds = [node.slice.lower, node.slice.upper] if isinstance(node.slice, ast.Slice) else [node.slice]
        numbers = [each.operand if isinstance(each, ast.UnaryOp) else each for each in bounds]
        is_number = any(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in numbers)
        if is_number and self.is_one(node.value):
            self.lines.add(node.lineno)
        self.generic_visit(node)


def by_number(tree: ast.Module) -> list[int]:
    """Of a whole file, each function by itself."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            visitor = RowColumns()
            visitor.visit(node)
            found |= visitor.lines
    return sorted(found)
