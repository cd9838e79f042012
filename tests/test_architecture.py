"""The shape of the source: allowed imports, no circles, the packages that imports load, file lengths, unsafe calls."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import sinkscope

ROOT = Path(__file__).parents[1]
SOURCE = Path(sinkscope.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

EVERYWHERE = set("axes counts errors extension_points lazy_names notebook_card progress runs".split())
ENTRIES = {"__init__", "__main__", "cli", "commands"}
"""These may import everything; all but ``__init__`` only inside a function, so that each command starts quickly, or as
a package that imports its names when they are first used.
"""
LAZY = {""} | {stub.parent.name for stub in SOURCE.glob("*/__init__.pyi")}

MAY_IMPORT: dict[str, set[str]] = {name: set() for name in (*EVERYWHERE, "attention", "traces", "checkpoints")} | {
    "sinks": {"traces.reading"},  # `find_sinks` opens a path
    "models": {"attention"},
    "statistics": {"sinks", "traces"},
    "decoding": {"attention", "models", "sinks"},
    "recorder": {"attention", "models", "traces", "sinks", "statistics"},
    "interventions": {"attention", "models", "sinks"},
    "roles": {"attention", "models", "sinks", "statistics", "decoding", "traces"},
    "emergence": {"interventions", "models", "roles"},
    "lenses": {"attention", "models", "recorder", "sinks", "statistics", "traces"},
    "lab": {"models", "decoding", "statistics"},
    "evaluation": {"lab", "models", "decoding", "interventions", "recorder", "statistics"},
    "figures": {"traces", "sinks", "statistics", "roles.head_roles", "emergence.history", "evaluation.results"},
}


@dataclass(frozen=True)
class Import:
    """One import of ours: ``target`` is the path within the package, names included; ``""`` is the package itself."""

    line: int
    target: str
    inside: bool


def imports_of_ours(source: str, module: str, package: bool) -> Iterator[Import]:
    """Every import of sinkscope in a file: absolute or relative, at the top or inside, by statement or by
    import_module.
    """
    tree = ast.parse(source)
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    deferred = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        for name in _imported(node, module, package):
            if name == "sinkscope" or name.startswith("sinkscope."):
                yield Import(node.lineno, name.removeprefix("sinkscope").strip("."), id(node) in deferred)


def _imported(node: ast.AST, module: str, package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = module.split(".")[: len(module.split(".")) - node.level + package]
            base = ".".join([*parents, *([base] if base else [])])
        return [f"{base}.{alias.name}" for alias in node.names]
    if (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
        and node.args
    ):
        first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
        return [str(first.value)] if isinstance(first, ast.Constant) else []
    return []


PUBLIC_NAMES = {
    one.target.rpartition(".")[2]: one.target
    for one in imports_of_ours((SOURCE / "__init__.pyi").read_text(), "sinkscope", package=True)
    if "." in one.target
}
"""Where each name that ``sinkscope`` exports is defined, as its stub says."""


def forbidden_imports(source: str, module: str, package: bool = False) -> list[str]:
    """Imports of a file that the table does not allow; ``module`` is its path from ``sinkscope``."""
    part = [*module.split("."), "__init__"][1]
    if part not in MAY_IMPORT and part not in ENTRIES:
        return [f"{module} has no row in the import table"]
    complaints = []
    for one in imports_of_ours(source, module, package):
        target = PUBLIC_NAMES.get(one.target, one.target)
        if part in ENTRIES:
            allowed = one.inside or part == "__init__" or target in LAZY or target.split(".")[0] in EVERYWHERE | {part}
            allowed = allowed or (part, target.split(".")[0]) in {("__main__", "cli"), ("cli", "commands")}
        else:
            mine = {part} | EVERYWHERE | MAY_IMPORT[part]
            allowed = any(target == name or target.startswith(f"{name}.") for name in mine)
        if not allowed:
            complaints.append(f"{module}:{one.line} imports {target or 'sinkscope itself'}")
    return complaints


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_imports_keep_to_the_table(path):
    assert not forbidden_imports(path.read_text(), _module(path), path.name == "__init__.py")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sinkscope.attention.blockwise", "from .. import models"),
        ("sinkscope.attention.blockwise", "def late():\n    from sinkscope.models import Model"),
        ("sinkscope.attention.blockwise", "import_module(f'sinkscope.models.{name}')"),
        ("sinkscope.lab.training", "from sinkscope.attention import attend"),
        ("sinkscope.cli", "from sinkscope.sinks import find_sinks"),
    ],
)
def test_a_forbidden_import_is_found(module, source):
    assert len(forbidden_imports(source, module)) == 1


Graph = dict[str, set[str]]


def import_graph(sources: dict[str, tuple[str, bool]]) -> Graph:
    """Which modules each module imports, wherever in the file: at the top, inside a function, for type checkers only.

    Args:
        sources: module → its text, and whether it is a package's ``__init__``.
    """
    graph: Graph = {}
    for module, (source, package) in sources.items():
        graph[module] = set()
        for one in imports_of_ours(source, module, package):
            found = ["sinkscope", *PUBLIC_NAMES.get(one.target, one.target).split(".")]
            while found and ".".join(found) not in sources:
                found.pop()
            graph[module] |= {".".join(found)} - {"", module}
    return graph


def circles(graph: Graph) -> list[str]:
    """A shortest circle through each module that lies on one, each circle once: ``a → b → a``."""
    found: dict[frozenset[str], str] = {}
    for start in sorted(graph):
        before, queue = {start: ""}, [start]
        for module in queue:
            if start in graph[module]:
                path = [module]
                while path[0] != start:
                    path.insert(0, before[path[0]])
                found.setdefault(frozenset(path), " → ".join([*path, start]))
                break
            fresh = sorted(graph[module] - before.keys())
            before |= dict.fromkeys(fresh, module)
            queue += fresh
    return list(found.values())


def test_no_imports_form_a_circle():
    graph = import_graph({_module(path): (path.read_text(), path.name == "__init__.py") for path in FILES})
    assert sum(map(len, graph.values())) > len(FILES)
    assert not circles(graph)


ARRAYS = {"numpy", "safetensors", "jaxtyping", "wadler_lindig", "typing_extensions", "tqdm"}
CLI = {"tyro", "docstring_parser", "typeguard", "rich", "pygments", "markdown_it", "mdurl", "typing_extensions"}
MAY_LOAD = {
    "sinkscope": {"typing_extensions"},
    "sinkscope.traces, sinkscope.sinks": ARRAYS,
    "sinkscope.figures, sinkscope.figures.explorer": ARRAYS,
    "sinkscope.evaluation.sandbox, sinkscope.evaluation.results": {"numpy"},
    "sinkscope.cli": CLI,
}


@pytest.mark.parametrize("modules", MAY_LOAD)
def test_an_import_loads_little(modules):
    """In a fresh interpreter, those of the standard library left out."""
    program = f"import sys\nbefore = set(sys.modules)\nimport {modules}\nprint(*set(sys.modules) - before)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in result.stdout.split()}
    assert not packages - sys.stdlib_module_names - {"sinkscope"} - MAY_LOAD[modules]


LONGEST = 400
NO_NOUNS = {"utils", "util", "helpers", "helper", "common", "misc"}
CODE = [path for folder in ("benchmarks", "experiments") for path in sorted((ROOT / folder).rglob("*.py"))] + FILES


@pytest.mark.parametrize("path", CODE, ids=lambda path: path.name)
def test_files_are_short_and_named_after_nouns(path):
    """House rule 12: a file is named after the noun it defines, and is never over 400 lines."""
    own = path.relative_to(SOURCE if path.is_relative_to(SOURCE) else ROOT)
    assert len(path.read_text().splitlines()) <= LONGEST
    assert not [part for part in (own.stem, *own.parts[:-1]) if part.strip("_") in NO_NOUNS]


def test_no_two_modules_have_one_name():
    """Packages have their ``__init__``, commands the names that users type."""
    names = [path.name for path in FILES if path.parent.name != "commands" and not path.name.startswith("__")]
    assert [name for name, count in Counter(names).items() if count > 1] == []


PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve"}


def unsafe_uses(source: str) -> list[str]:
    """Remote code and pickles: both run whatever a checkpoint holds. torch.load may be called with
    ``weights_only=True``.
    """
    found = []
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    safe = {
        id(call.func) for call in calls if any(ast.unparse(keyword) == "weights_only=True" for keyword in call.keywords)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [name for name in names if name.split(".")[0] in PICKLES]
            if isinstance(node, ast.ImportFrom) and node.module in ("torch", "torch.serialization"):
                found += [f"torch.{alias.name}" for alias in node.names if alias.name == "load"]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.serialization.load"):
            found += [] if id(node) in safe else ["torch.load"]
        elif isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "allow_pickle"):
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            found += [str(key) for key in keys if key in ("trust_remote_code", "allow_pickle")]
    return found


@pytest.mark.parametrize("path", CODE, ids=lambda path: path.name)
def test_nothing_of_a_checkpoint_is_executed(path):
    assert not unsafe_uses(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "AutoTokenizer.from_pretrained(folder, trust_remote_code=trusted)",
        "weights = torch.load(path, weights_only=False)",
        "def late():\n    import dill",
        "numpy.load(path, allow_pickle=True)",
    ],
)
def test_an_unsafe_use_is_found(source):
    assert len(unsafe_uses(source)) == 1


PARTS = set("src tests docs experiments benchmarks results Makefile pyproject.toml constraints.txt LICENSE".split())


def test_nothing_that_a_run_left_is_in_the_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git repository")
    top = {path.partition("/")[0] for path in listed.stdout.splitlines()} - PARTS
    assert [name for name in top if not name.startswith(".") and not name.endswith((".md", ".cff"))] == []
