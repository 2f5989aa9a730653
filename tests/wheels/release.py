"""Builds the files of a release into ``dist``, and checks them: ``make release``.

Everything is made from the commit that is checked out: an sdist and, from it, wheels for each
supported Python. Each file is built twice, in different folders, and must be the same. They are
installed from an index on loopback into empty environments, where the quick start is run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
import threading
import tomllib
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.wheels.test_wheels import ROOT, TESTS, interpreters, pip, run

DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = "cli,codecs,prometheus,sasl"
"""What the environments and the list of contents have."""


class Differs(Exception):
    """Two builds of one commit are not the same file."""


class Index(SimpleHTTPRequestHandler):
    """Serves the folders of a package index."""

    def log_message(self, *_: object) -> None:
        """Do not print requests."""


def step(text: str) -> None:
    """Print what is done next."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def built_twice(place: Path, *command: str | Path, **environment: str) -> Path:
    """Run a command that leaves one file in its last argument, twice. Return the file.

    Raises Differs.
    """
    files = []
    for name in ("first", "second"):
        out = place / name
        run(*command, out, **environment)
        (file,) = out.iterdir()
        files.append(file)
    first, second = files
    if (first.name, digest(first)) != (second.name, digest(second)):
        raise Differs(f"{first} and {second} are of one commit, but differ")
    return first


def build(scratch: Path, pythons: dict[str, str], epoch: str) -> list[Path]:
    """Build the sdist and all wheels into ``dist``, and return them, the sdist first."""
    python = sys.executable
    source = scratch / "source"
    source.mkdir()
    run("git", "archive", "--output", scratch / "source.tar", "HEAD", cwd=ROOT)
    run("tar", "-xf", scratch / "source.tar", "-C", source)
    command = (python, "-m", "build", "--sdist", source, "--outdir")
    sdist = built_twice(scratch / "sdist", *command, SOURCE_DATE_EPOCH=epoch)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    files = [Path(shutil.copy(sdist, DIST))]
    for version, compiler in {"pure": python, **pythons}.items():
        step(f"wheel: {version}")
        place = scratch / version
        out = built_twice(
            place / "raw",
            *pip(compiler, place),
            *("wheel", "--no-deps", "--quiet", sdist, "--wheel-dir"),
            SOURCE_DATE_EPOCH=epoch,
            ZKCONSUMER_COMPILE="no" if version == "pure" else "yes",
        )
        if version != "pure":  # the tag that a package index accepts
            command = (python, "-m", "auditwheel", "repair", out, "--wheel-dir")
            out = built_twice(place / "wheel", *command, SOURCE_DATE_EPOCH=epoch)
        files.append(Path(shutil.copy(out, DIST)))
    return files


def check(files: list[Path]) -> None:
    """The metadata can be published, and each file has the licence."""
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    licence = (ROOT / "LICENSE").read_bytes()
    named = f"{PROJECT['name']}-{PROJECT['version']}"
    for file in files:
        assert file.name.startswith(named), file
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as wheel:
                (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
                assert wheel.read(f"{info}/licenses/LICENSE") == licence, file
                metadata = wheel.read(f"{info}/METADATA").decode()
                assert f"License-Expression: {PROJECT['license']}\n" in metadata, file
                packages = {name.split("/")[0] for name in wheel.namelist()} - {info}
                assert packages == {"zkconsumer", "zkmigrate", "zkaudit"}, file
        else:
            with tarfile.open(file) as archive:
                copied = archive.extractfile(f"{named}/LICENSE")
                assert copied is not None
                assert copied.read() == licence, file


def index(place: Path, files: list[Path], pythons: dict[str, str]) -> None:
    """Fill a package index with the wheels and all that they need."""
    flat = place / "flat"
    for file in files[1:]:
        shutil.copy(file, place)
    for version, python in pythons.items():
        (wheel,) = (file for file in files if f"-cp{version.replace('.', '')}-" in file.name)
        command = ("wheel", "--quiet", "--wheel-dir", flat)
        run(*pip(python, place / version), *command, f"{wheel}[{EXTRAS}]", *TESTS)
    for wheel in [*flat.iterdir(), *files[1:]]:
        name = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        (place / "simple" / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, place / "simple" / name)


def install_and_run(version: str, python: str, place: Path, address: str, source: Path) -> None:
    """Install from the index alone, and run the quick start in a folder without the packages."""
    command = (*pip(python, place), "install", "--quiet", "--index-url", address)
    alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    run(*command, f"{PROJECT['name']}[{EXTRAS}]=={PROJECT['version']}", **alone)
    bin = place / "env" / "bin"
    assert "compiled" in run(bin / "zkconsumer", "--version", "--verbose", cwd=place), version
    if not list(DIST.glob("*.cdx.json")):
        name = DIST / f"{PROJECT['name']}-{PROJECT['version']}.cdx.json"
        command = ("environment", "--output-reproducible", "--output-file", name)
        run(sys.executable, "-m", "cyclonedx_py", *command, bin / "python")
    run(bin / "zkconsumer", "demo", "--lines", "5000", cwd=place)
    run(*pip(python, place), "install", "--quiet", "--index-url", address, *TESTS, **alone)
    path = f"{bin}{os.pathsep}{os.environ['PATH']}"
    tests = ("-m", "pytest", "-q", "tests/integration/test_readme.py")
    run(bin / "python", *tests, cwd=source, PATH=path)


def sign(key: Path | None, scratch: Path) -> None:
    """Write the checksums of ``dist``, sign them, and check the signature."""
    sums = DIST / "SHA256SUMS"
    files = sorted(DIST.iterdir())
    sums.write_text("".join(f"{digest(file)}  {file.name}\n" for file in files))
    if key is None:
        key = scratch / "key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        step("no --key: the checksums are signed with a key that is deleted now")
    run("ssh-keygen", "-Y", "sign", "-f", key, "-n", "file", sums)
    run("sha256sum", "--check", "--strict", sums.name, cwd=DIST)
    verify = "ssh-keygen -Y check-novalidate -n file -s SHA256SUMS.sig < SHA256SUMS"
    run("sh", "-c", verify, cwd=DIST)


def main() -> None:
    """Build, check, install, run, list and sign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--key", type=Path, help="SSH key that signs the checksums")
    parser.add_argument(
        "--without", action="append", default=[], help="supported Python to leave out, such as 3.14"
    )
    given = parser.parse_args()
    if changed := run("git", "status", "--porcelain", cwd=ROOT):
        parser.error(f"commit first:\n{changed}")
    kinds = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    wanted = [version for version in kinds if version not in given.without]
    found = interpreters()
    if missing := [version for version in wanted if version not in found]:
        parser.error(f"no Python {', '.join(missing)} with headers found (--without leaves it out)")
    pythons = {version: found[version] for version in wanted}
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    with tempfile.TemporaryDirectory(prefix="zkconsumer-release-") as folder:
        scratch = Path(folder)
        step("sdist")
        files = build(scratch, pythons, epoch)
        check(files)
        with tarfile.open(files[0]) as archive:
            archive.extractall(scratch / "unpacked", filter="data")
        (source,) = (scratch / "unpacked").iterdir()
        step("documentation, from the sdist")
        sphinx = ("-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", ".")
        run(sys.executable, *sphinx, scratch / "site", cwd=source)
        for package in ("zkconsumer", "migrate", "spark"):
            shutil.rmtree(source / package)
        step("package index, with all that the wheels need")
        (scratch / "index").mkdir()
        index(scratch / "index", files, pythons)
        handler = partial(Index, directory=str(scratch / "index"))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address = f"http://127.0.0.1:{server.server_port}/simple/"
            for version, python in pythons.items():
                step(f"quick start on Python {version}, in an empty environment")
                install_and_run(version, python, scratch / "run" / version, address, source)
            server.shutdown()
        sign(given.key, scratch)
    for file in sorted(DIST.iterdir()):
        step(f"{file.stat().st_size:>10} {file.name}")


if __name__ == "__main__":
    main()
