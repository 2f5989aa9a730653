"""Promises about the repository: its packages, their modules and imports."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Set
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["docker", "docs", "migrate", "spark"])
def test_plain_folders_are_no_packages(folder: str) -> None:
    """These folders have no ``__init__.py``. It would shadow installed packages of the same
    name."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_only_three_import_names_are_installed(tmp_path: Path) -> None:
    """Outside the repository, the editable install offers our three names and none of the
    folders."""
    script = (
        "import importlib.util as u\n"
        "names = 'zkconsumer zkmigrate zkaudit migrate spark docs tests'.split()\n"
        "print(*[n for n in names if u.find_spec(n)])\n"
    )
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["zkconsumer", "zkmigrate", "zkaudit"]


@pytest.mark.parametrize(
    ("folder", "package"),
    [(".", "zkconsumer"), ("migrate", "zkmigrate"), ("spark", "zkaudit")],
    ids=["zkconsumer", "zkmigrate", "zkaudit"],
)
def test_no_modules_import_each_other(folder: str, package: str) -> None:
    """No module imports, through others, one that imports it: not even for its types
    (``TYPE_CHECKING``), or inside of a function."""
    imports = _imports(ROOT / folder, package)
    assert len(imports) > 50
    assert _circle(imports) == []


def test_a_circle_is_found() -> None:
    """The search returns the modules of a circle, and nothing where there is none."""
    assert _circle({"a": {"b"}, "b": {"c", "d"}, "c": {"d"}, "d": set()}) == []
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}) == ["b", "c", "d"]


def _imports(folder: Path, package: str) -> dict[str, set[str]]:
    """Return the modules of a package that each of its modules imports."""
    paths = {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (folder / package).rglob("*.py")
    }
    imports: dict[str, set[str]] = {}
    for module, path in paths.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= inner if inner <= paths.keys() else {*inner, str(node.module)}
        imports[module] = (names & paths.keys()) - {module}
    return imports


def _circle(imports: Mapping[str, Set[str]]) -> list[str]:
    """Return the modules that import each other, or import one of these; empty: there are none."""
    left = {module: set(names) for module, names in imports.items()}
    while free := {module for module, names in left.items() if not names}:
        left = {module: names - free for module, names in left.items() if module not in free}
    while unused := left.keys() - {name for names in left.values() for name in names}:
        left = {module: names for module, names in left.items() if module not in unused}
    return sorted(left)


SOURCES = {"zkconsumer": ROOT, "zkmigrate": ROOT / "migrate", "zkaudit": ROOT / "spark"}
"""The folders of our packages."""
IMPORT = re.compile(
    rf"^([ \t]*from (({'|'.join(SOURCES)})[\w.]*) import (?:\([^()]*\)|[\w ,]+))", re.MULTILINE
)
"""An import from our packages, the module and its package."""


def test_what_is_imported_exists() -> None:
    """Everywhere, also in tests and benchmarks, which no type checker reads, and which may not run
    for weeks: each module of our packages that is imported exists, and has the imported names."""
    code = [path for part in ("tests", "docs", "docker") for path in (ROOT / part).rglob("*.py")]
    known: dict[str, set[str]] = {}
    missing = []
    for path in [*code, *_modules()]:
        for text, module, top in IMPORT.findall(path.read_text(encoding="utf-8")):
            (node,) = ast.parse(text.strip()).body
            assert isinstance(node, ast.ImportFrom)
            if module not in known:
                known[module] = _offered(SOURCES[top] / module.replace(".", "/"))
            names = {alias.name for alias in node.names} - known[module]
            missing += [f"{path}: {module}.{name}" for name in sorted(names)]
    assert len(known) > 200
    assert missing == []


def _offered(module: Path) -> set[str]:
    """Return what can be imported from a module or package; nothing if it does not exist."""
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    names = {path.stem for path in module.iterdir()} if module.is_dir() else set()
    if file.exists():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.alias(name, other):
                    names.add(other or name)
                case ast.FunctionDef(name) | ast.ClassDef(name) | ast.Name(name, ast.Store()):
                    names.add(name)
    return names


def test_what_is_installed_imports_no_tests() -> None:
    """No module of the three packages imports from ``tests``, which the wheel does not have."""
    parts = ("zkconsumer", "migrate", "spark")
    modules = [path for part in parts for path in ROOT.glob(f"{part}/**/*.py")]
    imports = re.compile(r"^\s*(?:from|import) tests\b", re.MULTILINE)
    assert modules
    assert not [path for path in modules if imports.search(path.read_text(encoding="utf-8"))]


def test_every_module_stays_readable() -> None:
    """No module of the library is longer than CONTRIBUTING allows."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (limit,) = [int(number) for number in re.findall(r"(\d+) lines", page)]
    modules = [
        path for part in ("zkconsumer", "migrate", "spark") for path in ROOT.glob(f"{part}/**/*.py")
    ]
    assert modules
    lines = {str(path): len(path.read_text().splitlines()) for path in modules}
    assert not {path: count for path, count in lines.items() if count > limit}


def test_a_folder_has_15_modules_at_most() -> None:
    """A reader can keep the names in a folder in mind; what is more gets folders of its own."""
    modules = _modules()
    assert len(modules) > 300
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    assert {folder for folder, count in counts.items() if count > 15} == set()


SHARED_NAMES = {
    "zookeeper classic kip848": "where a group is coordinated; a layer has a module for each",
    "machine events commands znodes": "parts of each protocol in the core, and of zkaudit's fold",
    "ownership offsets": "a family of findings, and what reads or changes its subject",
    "errors": "the errors of each package",
    "demo export": "a command, and what carries it out",
}
"""Names that more than two modules have, and why another name would be worse."""


def test_a_file_name_is_used_twice_at_most() -> None:
    """The name of a file tells a reader which one it is, without its folder."""
    counts = Counter(path.stem for path in _modules())
    names = {name for names in SHARED_NAMES for name in names.split()}
    assert {name for name, count in counts.items() if count > 2} <= names


def _modules() -> list[Path]:
    """Return the modules of the three packages, except those that Python names."""
    parts = ("zkconsumer", "migrate/zkmigrate", "spark/zkaudit")
    paths = [path for part in parts for path in (ROOT / part).rglob("*.py")]
    return [path for path in paths if not path.stem.startswith("__")]


UNUSED_PARTS = (
    *("journal", "core.groups", "core.migration", "tls", "kerberos", "sim", "servers", "cli"),
    "admin",
    *("broker.groups", "broker.cluster_reader", "broker.fetching.columns"),
    *(
        "runtime.membership.cluster_directory",
        "runtime.membership.listener",
        "runtime.membership.classic",
    ),
    *("runtime.observation.metrics_snapshot", "runtime.observation.metrics"),
    *("runtime.membership.line", "runtime.membership.other_store", "runtime.delivery.scala_reader"),
    *("runtime.fetch.scala_pressure", "broker.probes"),
    *("broker.fetching.epochs", "broker.fetching.epoch_ends", "core.zookeeper.listener_faults"),
    "config.tool_security",
    *("core.zookeeper.scripts.legacy", "core.zookeeper.scripts.kafka_storage"),
    *("core.common.topic_filter", "core.common.java_regex", "core.common.name_sets"),
    "core.common.scala_maps",
    *("broker.sasl", "broker.fetching.codecs", "broker.fetching.list_offsets"),
    *("broker.fetching.transactions", "runtime.observation.stalled"),
    *("config.jaas", "config.properties"),
)
"""Parts that a plain member in ZooKeeper does not use."""


MOST_MODULES, MOST_LINES = 80, 16_440
"""What a plain member in ZooKeeper loads is less than this."""


def test_a_member_loads_what_it_uses() -> None:
    """No journal, no TLS, no SASL, no offsets in Kafka, no filter, no listener, no reading of
    metrics: the code for these is not loaded. So a reader knows that it plays no part. The limits
    are today's numbers: lower them, never raise them."""
    script = (
        "import sys\n"
        "from zkconsumer import ZkUnavailableError, ZookeeperConsumerConnector\n"
        "keys = {'group.id': 'g', 'zookeeper.connect': '127.0.0.1:1',\n"
        "        'zookeeper.connection.timeout.ms': 50}\n"
        "try:\n"
        "    ZookeeperConsumerConnector(keys)\n"
        "except ZkUnavailableError:\n"
        "    print(*(name for name in sys.modules if name.startswith('zkconsumer.')))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    loaded = ran.stdout.split()
    assert "zkconsumer.runtime.membership.zookeeper" in loaded
    unused = tuple(f"zkconsumer.{part}" for part in UNUSED_PARTS)
    assert [name for name in loaded if name.startswith(unused)] == []
    assert len(loaded) < MOST_MODULES
    files = [ROOT / f"{name.replace('.', '/')}.py" for name in loaded]
    lines = sum(len(path.read_text().splitlines()) for path in files if path.exists())
    assert lines < MOST_LINES


PROFILE = {
    "zkconsumer/core/zookeeper/view.py": "the setting",
    "zkconsumer/core/zookeeper/profiles.py": "the rebalance",
    "zkconsumer/core/zookeeper/scripts/by_command.py": "the scripts",
    "zkconsumer/runtime/fetch/worker.py": "fetching",
    "zkconsumer/runtime/delivery/scala_reader.py": "the reader",
    "zkconsumer/connector.py": "the choice of the gate, the reader and the member's settings",
}
"""The modules of a member that know the profile ``scala``, and for what."""


def test_the_scala_profile_is_one_module_for_each_place_where_it_differs() -> None:
    """No other module of a running member asks for the profile. Comments may name it."""
    rooms = ("core", "runtime", "journal", "broker", "zk", "admin")
    paths = [path for room in rooms for path in (ROOT / "zkconsumer" / room).rglob("*.py")]
    paths += (ROOT / "zkconsumer").glob("*.py")
    known = {
        str(path.relative_to(ROOT))
        for path in paths
        if _names_of(path) & {"scala", "_scala", "SCALA", "Scala", "ScalaReader"}
    }
    assert known == PROFILE.keys()


def _names_of(path: Path) -> set[str]:
    """Return the names and the texts in the code of a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(name) | ast.Attribute(_, name) | ast.arg(name) | ast.keyword(name):
                names.add(name or "")
            case ast.Constant(str(text)):
                names.add(text)
            case ast.ClassDef(name):
                names.add(name)
    return names
