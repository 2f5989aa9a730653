"""Coverage-guided fuzzing of every target: ``python -m tests.fuzz.run [--seconds N] [TARGET ...]``.

Each target runs in its own process, as many at once as there are processors. Inputs that reach new
code are kept in ``build/fuzz/<target>`` for the next run. An input that a target fails on is
written to ``build/fuzz/<target>.failed``. Move it to ``tests/fuzz/found/<target>/``, and it becomes
a case of ``test_fuzz.py``. The exit status is 1 if a target failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

BUILD = Path("build/fuzz")
MEMORY_MB = 1024


def _child(name: str, seconds: int) -> None:
    """Fuzz one target; libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["zkconsumer", "zkmigrate", "zkaudit", "kafka"]):
        from tests.fuzz.check import fault
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]

    def one(data: bytes) -> None:
        if what := fault(target, data):
            (BUILD / f"{name}.failed").write_bytes(data)
            sys.stdout.write(f"{name}: {what}\n{data!r}\n")
            sys.stdout.flush()
            raise AssertionError(what)

    corpus = BUILD / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-rss_limit_mb={MEMORY_MB}",
        "-timeout=10",
        "-max_len=4096",
        "-print_final_stats=1",
        f"-artifact_prefix={BUILD}/{name}.",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


def _fuzz(name: str, seconds: int) -> tuple[str, bool, str]:
    command = [sys.executable, "-m", "tests.fuzz.run", "--child", name, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    lines = (done.stdout + done.stderr).splitlines()
    units = [line.split()[-1] for line in lines if "number_of_executed_units" in line]
    text = f"{units[-1]} inputs" if units else ""
    if done.returncode:
        text = "\n".join(line[:1000] for line in lines[-40:])
    return name, done.returncode == 0, text


def main() -> int:
    """Fuzz the given targets, or all."""
    parser = argparse.ArgumentParser(description="Fuzz the decoders of foreign bytes.")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*", help="which; default: all")
    options = parser.parse_args()
    if options.child:
        _child(options.child, options.seconds)
    from tests.fuzz.targets import TARGETS

    if unknown := set(options.targets) - set(TARGETS):
        parser.error(
            f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}"
        )
    BUILD.mkdir(parents=True, exist_ok=True)
    failed = 0
    with ThreadPoolExecutor(cpu_count()) as pool:
        names = options.targets or TARGETS
        for name, good, text in pool.map(lambda name: _fuzz(name, options.seconds), names):
            failed += not good
            sys.stdout.write(f"{'ok    ' if good else 'FAILED'} {name:18} {text}\n")
            sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
