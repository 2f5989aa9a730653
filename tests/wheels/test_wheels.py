"""The wheels: one with a compiled decoder for each CPython, and one in pure Python for all.

``make test-wheels`` runs this with the running interpreter. ``ZKC_PYTHONS`` names others, separated
as in ``PATH``. ``ZKC_PYTHONS=all`` uses those of ``PATH`` and of pyenv.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABOUT = (
    "import sys, os, sysconfig, ensurepip, venv\n"
    "assert sys.implementation.name == 'cpython' and sys.version_info >= (3, 11)\n"
    "assert os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h'))\n"
    "print('%d.%d' % sys.version_info[:2])\n"
)
"""Fails if no extension module can be built."""


def run(*words: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a command and return its output. A failure shows all of the output."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=kept | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-4000:]}"
    return done.stdout


@functools.cache
def interpreters() -> dict[str, str]:
    """CPython versions by name, each with one interpreter. The running interpreter is first."""

    def candidates() -> Iterator[str]:
        yield sys.executable
        named = os.environ.get("ZKC_PYTHONS", "")
        if named != "all":
            yield from filter(None, named.split(os.pathsep))
            return
        for minor in range(11, 20):
            if found := shutil.which(f"python3.{minor}"):
                yield found
        versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        yield from map(str, sorted(versions.glob("3.*/bin/python")))

    found: dict[str, str] = {}
    for path in candidates():
        asked = subprocess.run([path, "-c", ABOUT], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            found.setdefault(asked.stdout.strip(), path)
    return found


def pip(python: str, place: Path) -> tuple[str | Path, ...]:
    """Make an empty environment of this interpreter, and return the command of its pip."""
    run(python, "-m", "venv", "--without-pip", place / "env")
    return (sys.executable, "-m", "pip", "--python", place / "env" / "bin" / "python")


@functools.cache
def build(python: str, out: Path, compile: str) -> Path:
    """Build a wheel with this interpreter, in its own environment, the first time."""
    out.mkdir()
    run(
        *pip(python, out),
        "wheel",
        "--no-deps",
        "--wheel-dir",
        out,
        ROOT,
        ZKCONSUMER_COMPILE=compile,
    )
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the compiled wheel of an interpreter."""
    folder = tmp_path_factory.mktemp("wheels")
    return lambda version: build(interpreters()[version], folder / version, "yes")


def decoder(python: str, wheel: Path, place: Path) -> str:
    """Install the wheel into an empty environment, import it, and return which decoder runs."""
    run(*pip(python, place), "install", "--no-compile", f"{wheel}[cli]")
    bin = place / "env" / "bin"
    modules = "zkconsumer, zkconsumer.connector, zkconsumer.coordinator, zkmigrate, zkaudit"
    run(bin / "python", "-c", f"import {modules}", cwd=place)
    for command in ("zkmigrate", "zkaudit"):
        run(bin / command, "--help", cwd=place)
    shown = run(bin / "zkconsumer", "--version", "--verbose", cwd=place)
    return shown.partition("record decoder")[2].strip()


def test_the_running_python_can_build() -> None:
    """An extension module can be built. Otherwise the tests below would have nothing to do."""
    sys.stdout.write(f"building for {interpreters()}\n")
    assert ".".join(map(str, sys.version_info[:2])) in interpreters()


@pytest.mark.parametrize("version", sorted(interpreters()))
def test_a_compiled_wheel_is_installed_and_runs_compiled(
    version: str, compiled: Callable[[str], Path], tmp_path: Path
) -> None:
    """The wheel has the tag of its interpreter, and depends only on the machine's C library."""
    wheel = compiled(version)
    tag = f"cp{version.replace('.', '')}"
    assert f"-{tag}-{tag}-" in wheel.name
    assert decoder(interpreters()[version], wheel, tmp_path / "there") == "compiled"
    if sys.platform == "linux":
        verdict = run(sys.executable, "-m", "auditwheel", "show", wheel)
        assert "manylinux" in verdict, verdict


TESTS = ("pytest", "pytest-rerunfailures", "pytest-timeout", "pytest-xdist", "hypothesis")
DECODER = ("records", "columns", "streams*", "messages", "codecs*", "asyncio")


def on_the_wheel(root: Path) -> list[Path]:
    """Return the tests of the decoder, which need nothing but an installed wheel."""
    unit = [path for name in DECODER for path in (root / "tests/unit").glob(f"test_{name}.py")]
    return [root / "tests/compiled/test_agree.py", *sorted(unit)]


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("version", sorted(interpreters()))
def test_the_quick_start_and_the_decoder_s_tests_pass_on_the_wheel(
    version: str, compiled: Callable[[str], Path], tmp_path: Path
) -> None:
    """In a folder that has the tests and the README, and not the sources of the package."""
    wheel, there = compiled(version), pip(interpreters()[version], tmp_path / "there")
    run(*there, "install", "--no-compile", f"{wheel}[arrow,cli,codecs]", *TESTS)
    for name in ("tests", "docs", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    files = [*on_the_wheel(tmp_path), "tests/integration/test_readme.py"]
    bin = tmp_path / "there" / "env" / "bin"
    path = f"{bin}{os.pathsep}{os.environ['PATH']}"
    printed = run(bin / "python", "-m", "pytest", "-q", *files, cwd=tmp_path, PATH=path)
    assert " passed" in printed.splitlines()[-1]
    assert "skipped" not in printed


def test_the_pure_wheel_is_for_every_python(tmp_path: Path) -> None:
    """Each interpreter installs the same wheel. It has our three packages, no extension module, and
    the files that an installed copy needs to start servers and to write a report."""
    wheel = build(sys.executable, tmp_path / "wheel", "no")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    packages = {"zkconsumer", "zkmigrate", "zkaudit"}
    assert {top for path in names if not (top := path.parts[0]).endswith(".dist-info")} == packages
    assert not [path for path in names if path.suffix == ".so"]
    assert {Path(package, "py.typed") for package in packages} <= names
    servers = {path.name for path in names if path.is_relative_to("zkconsumer/servers/jvm")}
    assert servers == {path.name for path in (ROOT / "zkconsumer/servers/jvm").iterdir()}
    files = (ROOT / "spark/zkaudit").rglob("*.*")
    data = {path.name for path in files if path.suffix not in (".py", ".pyc")}
    assert data == {"page.html", "page.js", "log4j2.properties", "py.typed"}
    assert data <= {path.name for path in names if path.is_relative_to("zkaudit")}
    for version, python in interpreters().items():
        assert decoder(python, wheel, tmp_path / version) == "pure Python"


@pytest.mark.parametrize("platform", ["linux", "macos", "windows"])
def test_cibuildwheel_builds_for_every_supported_python(platform: str) -> None:
    """cibuildwheel accepts its configuration and builds the versions that the package promises."""
    found = run(
        sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--platform", platform
    ).split()
    assert {name.partition("-")[0] for name in found} == {"cp311", "cp312", "cp313", "cp314"}
    assert not [name for name in found if name.endswith(("win32", "i686"))]
