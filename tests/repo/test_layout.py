"""Promises about the repository: its packages, its import contracts, its tree of errors."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import zkconsumer.errors
from zkconsumer.errors import ZkConsumerError

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


def test_the_wheel_holds_three_packages_and_the_server_files(tmp_path: Path) -> None:
    """A wheel has our three packages, and the files that an installed copy needs to start
    servers."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), "."],
        cwd=ROOT,
        env=os.environ | {"ZKCONSUMER_COMPILE": "no"},
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "zkconsumer",
        "zkmigrate",
        "zkaudit",
    }
    shipped = {path.name for path in (ROOT / "zkconsumer/servers/jvm").iterdir()}
    assert shipped == {Path(name).name for name in names if "/servers/jvm/" in name}
    assert {f"{package}/py.typed" for package in ("zkconsumer", "zkmigrate", "zkaudit")} <= {*names}
    files = (ROOT / "spark/zkaudit").rglob("*.*")
    data = {path.name for path in files if path.suffix not in (".py", ".pyc")}
    assert data == {"page.html", "page.js", "log4j2.properties", "py.typed"}
    assert data <= {Path(name).name for name in names if name.startswith("zkaudit/")}


def test_import_contracts_hold() -> None:
    """Every contract of ``[tool.importlinter]`` is kept."""
    checked = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_what_is_installed_imports_no_tests() -> None:
    """No module of the three packages imports from ``tests``, which the wheel does not have."""
    parts = ("zkconsumer", "migrate", "spark")
    modules = [path for part in parts for path in ROOT.glob(f"{part}/**/*.py")]
    imports = re.compile(r"^\s*(?:from|import) tests\b", re.MULTILINE)
    assert modules
    assert not [path for path in modules if imports.search(path.read_text(encoding="utf-8"))]


def test_the_error_tree_in_the_docstring_is_true() -> None:
    """The tree in ``errors.py`` has exactly its classes, each below its base class."""
    drawn: set[tuple[str, str]] = set()
    branch: list[str] = []
    for line in inspect.getdoc(zkconsumer.errors).splitlines():  # type: ignore[union-attr]
        mark = line.find("+- ")
        if line.strip() == "ZkConsumerError":
            branch, root_at = ["ZkConsumerError"], line.index("Z")
        elif mark >= 0:
            depth = (mark - root_at) // 3 + 1
            branch = [*branch[:depth], line[mark + 3 :].split()[0]]
            drawn.add((branch[-2], branch[-1]))
    real = {
        (cls.__bases__[0].__name__, name)
        for name, cls in vars(zkconsumer.errors).items()
        if inspect.isclass(cls) and issubclass(cls, ZkConsumerError) and cls is not ZkConsumerError
    }
    assert drawn == real


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
