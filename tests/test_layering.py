"""Who may import whom, and what nobody may: read off the source by ast, and off real processes."""

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mtlprune"
STOREYS = [  # a room may import from those below; within a storey, as long as it does not go in circles
    {"errors"},
    {"sentence", "layers", "io"},
    {"corpora", "evaluation"},
    {"encoder", "tasks", "config"},
    {"runs", "model", "statistics"},
    {"training", "pretraining", "sweeps", "analyses"},
    {"figures"},
    {"analyses/show"},
    {"reports"},
    {"cli", "__main__"},
]
HEIGHT = {room: height for height, storey in enumerate(STOREYS) for room in storey}
FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def calls(path: Path) -> list[ast.Call]:
    return [node for node in nodes(path) if isinstance(node, ast.Call)]


def room(parts: tuple[str, ...]) -> str:
    """Of a module's name below mtlprune; what shows stands above what measures."""
    return "analyses/show" if parts[0] == "analyses" and "show" in parts else parts[0]


def room_of(path: Path) -> str:
    return room(path.relative_to(PACKAGE).with_suffix("").parts)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, inside functions too."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def rooms_imported(path: Path) -> Iterator[tuple[int, str]]:
    for line, name in imported(path):
        top, *rest = name.split(".")
        if top == "mtlprune" and rest and rest[0] != "__version__":
            yield line, room(tuple(rest))


def test_nobody_imports_upwards_or_in_circles():
    graph: dict[str, set[str]] = {room: set() for room in HEIGHT}
    wrong = []
    for path in (path for path in FILES if room_of(path) != "__init__"):
        mine = room_of(path)
        for line, other in rooms_imported(path):
            graph[mine] |= {other} - {mine}
            if HEIGHT[other] > HEIGHT[mine]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {other}")
    assert not wrong
    assert "analyses" not in graph["pretraining"]
    assert graph["tasks"] >= {"encoder"} and graph["model"] >= {"tasks", "config"}  # the reading works
    assert_no_circle(graph)


def assert_no_circle(graph: dict[str, set[str]]) -> None:
    while graph:
        free = [name for name, needs in graph.items() if not needs & graph.keys()]
        assert free, f"these import each other: {graph}"
        for name in free:
            del graph[name]


def modules_imported(path: Path, modules: set[str]) -> set[str]:
    """Those of the modules that a file imports, and packages around them but its own, which Python runs first."""
    mine = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    named = {name if name in modules else name.rpartition(".")[0] for _, name in imported(path)}
    around = {part.rpartition(".")[0] for part in named}
    return (named | {name for name in around if not mine.startswith(f"{name}.")}) & modules


def test_no_circle_of_modules():
    """Also inside functions, and for types alone."""
    modules = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES}
    modules = {path: name.removesuffix(".__init__") for path, name in modules.items()}
    inner = {*modules.values()} - {"mtlprune"}
    graph = {name: modules_imported(path, inner) - {name} for path, name in modules.items() if name in inner}
    training = "mtlprune.training"
    assert len(graph) > 200 and graph[f"{training}.loop"] >= {f"{training}.setup", f"{training}.pruning"}
    assert f"{training}.treatments" in graph[f"{training}.setup"]  # the reading works
    assert {f"{training}.loop", f"{training}.inspection"} >= {
        name for name, needs in graph.items() if name.startswith(training) and f"{training}.setup" in needs
    }
    assert_no_circle(graph)


def test_layers_know_errors_alone_and_tasks_nothing_of_each_other():
    assert {room for _, room in rooms_imported(PACKAGE / "layers.py")} == {"errors"}
    assert {room for _, room in rooms_imported(PACKAGE / "sentence.py")} == {"errors", "layers"}
    shared = {"base", "inference", "products", "spans"}
    for path in (PACKAGE / "tasks").glob("*.py"):
        if path.stem != "__init__":
            names = {name.split(".")[2] for _, name in imported(path) if name.startswith("mtlprune.tasks.")}
            assert names <= shared, path


FORBIDDEN = {"pickle", "cPickle", "dill", "shelve", "marshal", "joblib", "cloudpickle"}
SOURCES = [*FILES, *sorted((ROOT / "data_scripts").rglob("*.py")), *sorted((ROOT / "experiments").rglob("*.py"))]


def test_no_pickle_and_no_code_from_data():
    unsafe = {"eval", "exec", "torch.load", "torch.save", "yaml.load", "yaml.unsafe_load"}
    wrong = []
    for path in SOURCES:
        wrong += [f"{path}:{line} {name}" for line, name in imported(path) if name.split(".")[0] in FORBIDDEN]
        for node in calls(path):
            trusted = ("allow_pickle", "trust_remote_code")
            told = any(k.arg in trusted and ast.unparse(k.value) != "False" for k in node.keywords)
            if told or ast.unparse(node.func) in unsafe:
                wrong.append(f"{path}:{node.lineno} {ast.unparse(node)[:60]}")
    assert not wrong


def test_supar_is_imported_in_one_place():
    users = {path.name for path in FILES for _, name in imported(path) if name.split(".")[0] == "supar"}
    assert users == {"inference.py"}


def test_the_library_is_silent():
    said = ("print", "sys.stdout.write", "sys.stderr.write")
    silent = [path for path in FILES if room_of(path) != "cli"]
    assert not [f"{path}:{c.lineno}" for path in silent for c in calls(path) if ast.unparse(c.func) in said]


HEAVY = ("torch", "transformers", "datasets", "supar")
WITHOUT_TORCH = {"config", "runs", "sweeps", "statistics"}
LIGHT = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): HEAVY
    for path in FILES
    if room_of(path) in WITHOUT_TORCH
}
LIGHT |= {
    "mtlprune.cli": HEAVY,
    "mtlprune.evaluation.scores": HEAVY,
    "mtlprune": HEAVY,
    "mtlprune.sentence": (*HEAVY, "numpy"),
    "mtlprune.tasks.inference": ("supar",),
    "mtlprune.corpora.grammar": ("torch", "transformers", "supar"),
}
SHOWING = {"figures", "reports", "analyses/show"}
REPORTS = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES if room_of(path) in SHOWING)
ABOVE_REPORTS = tuple(f"mtlprune.{room}" for room in ("encoder", "tasks", "training", "model", "tasks.inference"))
LIGHT |= {name.removesuffix(".__init__"): (*HEAVY, *ABOVE_REPORTS) for name in REPORTS}


@pytest.mark.parametrize("heavy", sorted(set(LIGHT.values())), ids=lambda heavy: f"without {len(heavy)}")
def test_importing_it_is_light(heavy):
    """One process for all modules that may not load the same: after each, what is there that should not be."""
    modules = [name for name in sorted(LIGHT) if LIGHT[name] == heavy]
    code = f"import sys\nfor name in {modules}:\n    __import__(name)\n    "
    code += f"print(name, *sorted({{*{heavy}}} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == modules


ELSEWHERE = """
import importlib, os, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "grp", "pwd", "resource", "termios"):
            raise ModuleNotFoundError(f"{name} is blocked by this test", name=name)

sys.meta_path.insert(0, Absent())
for name in ("grp", "pwd"):
    sys.modules.pop(name, None)
for name in ("sched_getaffinity", "memfd_create", "pidfd_open", "posix_fadvise"):
    delattr(os, name) if hasattr(os, name) else None
import mtlprune
for module in pkgutil.walk_packages(mtlprune.__path__, "mtlprune."):
    if module.name != "mtlprune.__main__":
        importlib.import_module(module.name)
"""
"""Imports every module where those of POSIX and functions of Linux are missing."""


@pytest.mark.slow
def test_importing_it_needs_no_linux():
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_two_classes_share_a_name():
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in FILES)
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert len(names) > 100 and not [name for name, number in names.items() if number > 1]


def test_files_that_share_a_prefix_are_a_folder():
    families = Counter((path.parent, path.stem.partition("_")[0]) for path in FILES)
    assert not [prefix for (_, prefix), number in families.items() if prefix and number > 2]
