"""A name tells a stranger what the value is: never a pronoun, an adjective, a participle or a quantifier alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mtlprune"
WORDS = """
one own each whole some what theirs mine ours other others another both several many most few every such same which who
whose everything nothing anything something ones them they their its known kept broken found told held taken given
wanted asked shown named chosen seen drawn counted listed changed moved opened claimed begun lost gone unread unseen
settled gathered picked tried said meant stated sought carried placed standing lacking missed made done put laid taught
served looked parted spread fallen lone unlike alike odd sure ready usual real true alone ahead later rest half apart
together aside
"""
BANNED = set(WORDS.split())
WRITTEN = {  # settings of users and fields of files keep the names by which they are written
    "analyses/heads/curve/__init__.py every",
    "analyses/probes/__init__.py few",
    "analyses/vectors/degeneration/__init__.py counted",
    "cli/train.py everything",
    "config/blocks.py half",
    "config/blocks.py named",
    "encoder/removal.py kept",
    "pretraining/config.py every",
    "reports/pretraining.py every",
    "runs/claims.py half",
    "runs/forms.py begun",
}


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that is bound: variables, parameters, functions, classes, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_names_tell_what_a_value_is():
    wrong, written = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for line, name in bound(ast.parse(path.read_text(encoding="utf-8"))):
            if name.strip("_").lower() in BANNED:
                written.add(f"{file} {name}")
                wrong += [f"{file}:{line} {name}"] if f"{file} {name}" not in WRITTEN else []
    assert not wrong
    assert written == WRITTEN
