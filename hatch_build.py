"""Compiles the record decoders when a wheel is built.

Hatchling runs this. ``ZKCONSUMER_COMPILE`` says what it does: ``yes`` ends the build where nothing
can be compiled, ``no`` makes a pure-Python wheel, and ``auto``, the default, makes one where the
compiler is missing. An editable install is always pure Python: edits take effect at once.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: The hot path. It is one module, so mypyc needs no shared library outside the package.
MODULE = "zkconsumer/broker/fetching/records.py"

#: Columns without the interpreter lock, which mypyc cannot release.
NATIVE = "zkconsumer/broker/fetching/_native.c"


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the compiled module into the wheel, next to its source."""

    def _wish(self) -> str:
        wish = os.environ.get("ZKCONSUMER_COMPILE", "auto")
        if wish not in ("auto", "yes", "no"):
            raise ValueError(f"ZKCONSUMER_COMPILE is {wish!r}: give auto, yes or no")
        return wish

    def dependencies(self) -> list[str]:
        """What the build needs in addition to hatchling."""
        return [] if self._wish() == "no" else ["mypy>=2.4", "setuptools>=65"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is put together."""
        if self.target_name != "wheel" or version == "editable" or self._wish() == "no":
            return
        self._scratch = tempfile.mkdtemp(prefix="zkconsumer-compile-")
        try:
            compiled = compile_in(Path(self.root), Path(self._scratch))
        except (Exception, SystemExit) as exc:
            if self._wish() == "yes":
                raise
            self.app.display_warning(
                f"The record decoder is not compiled ({type(exc).__name__}: {exc}). This wheel is "
                "pure Python: it does the same and decodes several times slower."
            )
            return
        for file in compiled:
            build_data["force_include"][str(file)] = str(file.relative_to(self._scratch))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete what the compiler left."""
        if scratch := getattr(self, "_scratch", None):
            shutil.rmtree(scratch, ignore_errors=True)


def compile_in(root: Path, scratch: Path) -> list[Path]:
    """Compile a copy of the package in ``scratch``; return the extension modules.

    Raises what mypyc, setuptools and the compiler raise.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension

    shutil.copytree(
        root / "zkconsumer", scratch / "zkconsumer", ignore=shutil.ignore_patterns("__pycache__")
    )
    there = Path.cwd()
    os.chdir(scratch)  # mypyc names modules by their path from here
    try:
        options = ["--ignore-missing-imports", "--follow-imports=silent", "--config-file=", MODULE]
        extensions = mypycify(options, opt_level="3")
        name = NATIVE.removesuffix(".c").replace("/", ".")
        optimize = "/O2" if sys.platform == "win32" else "-O3"
        extensions.append(Extension(name, [NATIVE], extra_compile_args=[optimize]))
        if sys.platform != "win32":  # debug information would name this folder, which is random
            for extension in extensions:
                extension.extra_compile_args = [*extension.extra_compile_args, "-g0"]
        distribution = Distribution({"name": "zkconsumer", "ext_modules": extensions})
        command = distribution.get_command_obj("build_ext")
        command.inplace = True
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(there)
    suffix = ".pyd" if sys.platform == "win32" else ".so"
    found = sorted((scratch / "zkconsumer").rglob(f"*{suffix}"))
    for source in (MODULE, NATIVE):
        if not any(file.name.startswith(f"{Path(source).stem}.") for file in found):
            raise FileNotFoundError(f"the compiler left no {suffix} file of {source}")
    return found
