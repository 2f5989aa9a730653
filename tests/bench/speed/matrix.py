"""Every size of message and batch, and every codec: ``python -m tests.bench.speed.matrix``.

For each cell a topic is filled, and the readers take turns. Each figure is written at once to
``build/bench/matrix.json``, with the machine's load: a later call measures only what is missing.
``build/bench/matrix.html`` shows the ratios of our readers to the best peer and to the floor.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

from tests.bench.speed.__main__ import COMPILERS, java_options
from tests.bench.speed.parts import Case, fill, now
from tests.bench.speed.readers import BUILD, BY_NAME, HERE, Reader, prepare, run
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.fetch import BrokerFetcher
from zkconsumer.broker.types import Want
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.servers import LocalCluster

FILE, PAGE = BUILD / "matrix.json", BUILD / "matrix.html"
SIZES = (10, 100, 1024, 10_240, 102_400)
BATCHES = (1, 10, 100, 1000)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LARGEST = 1_030_000
"""Bytes of a batch. Brokers refuse larger ones by default."""

Cell = dict[str, list[dict[str, float]]]
"""Each reader's rounds."""

FRANZ = Reader("franz-go", "franz-go")
FRANZ_VERSION = "v1.22.3"
OURS = ("ours", "ours, batches", "ours, arrow")
PEERS = ("Java KafkaConsumer 3.9", "confluent-kafka", "confluent-kafka, tuned", "aiokafka")
SLOW = ("confluent-kafka", "aiokafka")
"""They read at most ``FEW`` messages."""
FEW = 200_000


def cells(sizes: Sequence[int], batches: Sequence[int], codecs: Sequence[str]) -> list[Case]:
    """The cells that a broker takes, the plain ones first."""
    return [
        Case(
            f"{size} B, {batch} a batch, {codec}",
            size=size,
            codec=codec,
            per_batch=batch,
            messages=min(10_000 * batch + 90_000, 1_000_000, (256 << 20) // size),
        )
        for codec in codecs
        for size in sizes
        for batch in batches
        if size * batch <= LARGEST
    ]


def franz() -> bool:
    """Build franz-go's reader. Returns false without a Go toolchain or its module."""
    place = BUILD / "franz"
    if shutil.which("go") is None:
        return False
    place.mkdir(exist_ok=True)
    shutil.copy(HERE / "FranzReader.go", place / "main.go")
    (place / "go.mod").write_text("module franz\n\ngo 1.24\n")
    for words in (
        ("get", f"github.com/twmb/franz-go/pkg/kgo@{FRANZ_VERSION}"),
        ("build", "-o", str(BUILD / "franz-go"), "."),
    ):
        if subprocess.run(["go", *words], cwd=place, check=False).returncode:
            return False
    return True


def per_batch(cluster: LocalCluster, topic: str) -> float:
    """How many records a batch has, in the first megabyte of a partition."""
    host, _, port = cluster.bootstrap.partition(":")
    connection = BrokerConnection(BrokerEndpoint(0, host, int(port)), "matrix", 30, -1)
    try:
        (got,) = BrokerFetcher(connection).fetch([Want(topic, 0, 0, 1 << 20)], 500, 1, 50 << 20)
    finally:
        connection.close()
    if got.error is not None:
        raise got.error
    records = batches = pos = 0
    while pos + 61 <= len(got.data):
        records += int.from_bytes(got.data[pos + 57 : pos + 61], "big")
        batches += 1
        pos += 12 + int.from_bytes(got.data[pos + 8 : pos + 12], "big")
    return records / batches


def measure(cluster: LocalCluster, case: Case, readers: Sequence[Reader], rounds: int) -> bool:
    """Measure what a cell lacks, in turns. Returns whether it lacked anything."""
    known = load()
    have = known["cells"].setdefault(case.name, {})
    chosen = [reader for reader in readers if len(have.get(reader.name, ())) < rounds]
    if not chosen:
        return False
    fill(cluster, case)
    known["per batch"][case.name] = per_batch(cluster, case.topic)
    for turn in range(rounds):
        for reader in chosen[turn % len(chosen) :] + chosen[: turn % len(chosen)]:
            if len(have.get(reader.name, ())) > turn:
                continue
            count = min(case.messages * 9 // 10, FEW if reader.name in SLOW else 1 << 40)
            try:
                found = run(reader, cluster, case.topic, count)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                known["missing"].append(f"{reader.name} of {case.name} ({str(error)[:200]})")
                sys.stderr.write(f"{now()} {error}\n")
                continue
            rate, cpu = found["messages"] / found["seconds"], found["cpu"] / found["messages"]
            figures = have.setdefault(reader.name, [])
            figures.append({"rate": rate, "cpu": cpu * 1e6, "load": os.getloadavg()[0]})
            FILE.write_text(json.dumps(known, indent=1) + "\n")
            sys.stderr.write(f"{now()} {case.name}: {reader.name}: {rate:,.0f} msg/s\n")
    return True


def load() -> dict[str, Any]:
    """What was measured already."""
    if FILE.exists():
        known: dict[str, Any] = json.loads(FILE.read_text())
        return known
    return {"cells": {}, "per batch": {}, "missing": []}


def ratio(cell: Cell, ours: str, others: Sequence[str]) -> float | None:
    """The median of our rate, divided by the best median of the others."""
    rates = {name: statistics.median(one["rate"] for one in rows) for name, rows in cell.items()}
    best = max((rates[name] for name in others if name in rates), default=0.0)
    return rates[ours] / best if best and ours in rates else None


def page(known: dict[str, Any]) -> str:
    """The heat maps, the figures, and what is missing."""
    every = [one for cell in known["cells"].values() for rows in cell.values() for one in rows]
    loads = [one["load"] for one in every]
    out = [
        "<!doctype html><meta charset=utf-8><title>Readers beside each other</title><style>"
        "body{font:14px sans-serif;margin:2em}td,th{padding:3px 8px;text-align:right}"
        "table{border-collapse:collapse;margin-bottom:2em}</style>"
        "<h1>Readers beside each other</h1>"
        f"<p>{os.cpu_count()} cores. Load of the machine during the runs: "
        f"{min(loads, default=0):.1f} to {max(loads, default=0):.1f}. "
        f"Not measured: {escape(', '.join(known['missing']) or 'nothing')}.</p>"
    ]
    for title, others in (("best peer", [*PEERS, FRANZ.name]), ("floor", ["floor"])):
        out.append(f"<h2>Ratio to the {title}</h2><table><tr><th>cell")
        out += [f"<th>{name}" for name in OURS]
        for name, cell in known["cells"].items():
            out.append(f"<tr><th>{escape(name)}")
            for ours in OURS:
                found = ratio(cell, ours, others)
                hue = 0 if found is None else min(120, max(0, 120 * (found - 0.5)))
                shown = "" if found is None else f"{found:.2f}"
                out.append(f'<td style="background:hsl({hue:.0f} 60% 75%)">{shown}')
        out.append("</table>")
    out.append("<h2>Messages per second; CPU seconds a million</h2>")
    out.append("<table><tr><th>cell<th>records a batch<th>")
    readers = dict.fromkeys(name for cell in known["cells"].values() for name in cell)
    out.append("<th>".join(map(escape, readers)))
    for name, cell in known["cells"].items():
        out.append(f"<tr><th>{escape(name)}<td>{known['per batch'].get(name, 0):.0f}")
        for reader in readers:
            rows = cell.get(reader) or []
            rate, cpu = (
                statistics.median([one[key] for one in rows] or [0.0]) for key in ("rate", "cpu")
            )
            out.append(f"<td>{rate:,.0f}; {cpu:.2f}" if rows else "<td>")
    return "".join(out) + "</table>\n"


def main() -> int:
    """Measure the cells that were asked for, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.speed.matrix", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--scale", type=float, default=1.0, help="the part of the messages to read")
    options = parser.parse_args()
    sizes, batches = (
        [int(word) for word in words.split(",")] for words in (options.sizes, options.batches)
    )
    prepare()
    known = load()
    names = [*OURS, *PEERS, "floor"]
    known["missing"] = []
    if importlib.util.find_spec("aiokafka") is None:
        known["missing"].append("aiokafka (not installed)")
        names.remove("aiokafka")
    readers = [BY_NAME[name] for name in names]
    if franz():
        readers.append(FRANZ)
    else:
        known["missing"].append("franz-go (no Go toolchain)")
    FILE.write_text(json.dumps(known, indent=1) + "\n")
    cluster = LocalCluster("3.9")
    try:
        with java_options(f"{COMPILERS} -Xmx1g"):
            cluster.start()
        for case in cells(sizes, batches, options.codecs.split(",")):
            scaled = max(1000, int(case.messages * options.scale))
            if measure(cluster, replace(case, messages=scaled), readers, options.rounds):
                PAGE.write_text(page(load()))
    finally:
        cluster.close()
    PAGE.write_text(page(load()))
    sys.stdout.write(f"{PAGE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
