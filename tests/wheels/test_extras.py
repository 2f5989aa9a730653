"""Each extra, installed alone into an empty environment, is all that its feature needs.

``make test-extras`` runs this.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]

# What uses each extra. It prints "works", or ends with an error that names what is missing.
USES = {
    "arrow": """
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
stream = KafkaStream(Reader(DeliveryGate(always_open=True), timeout_ms=0))
assert next(stream.arrow_batches(timeout=0)).num_rows == 0
""",
    "cli": """
import subprocess, sys
for words in ("zkconsumer simulate --members 2 --partitions 2", "zkmigrate --help"):
    module, *rest = words.split()
    subprocess.run([sys.executable, "-m", module, *rest], check=True)
""",
    "codecs": """
from zkconsumer.broker.fetching.codecs import decompress
snappy = "0308616263"
lz4 = "04224d1868400300000000000000870300008061626300000000"
zstd = "28b52ffd2003190000616263"
assert decompress(4, bytes.fromhex(zstd)) == b"abc"
assert decompress(3, bytes.fromhex(lz4)) == b"abc"
assert decompress(2, bytes.fromhex(snappy)) == b"abc"
""",
    "prometheus": """
from urllib.request import urlopen
from zkconsumer.prometheus import start_http_server
with start_http_server([], 0) as server:
    assert b"# TYPE" in urlopen(server.url).read()
""",
    "sasl": """
from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.zk.security import ZkSecurity
login = 'org.apache.zookeeper.server.auth.DigestLoginModule required username="u" password="p";'
config = ConsumerConfig.parse({
    "zookeeper.connect": "localhost", "group.id": "g",
    "zkconsumer.zookeeper.sasl.jaas.config": login,
})
ZkSecurity(config)
""",
    "kerberos": """
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config.tool_security import SecurityConfig
module = "com.sun.security.auth.module.Krb5LoginModule"
KafkaSecurity(SecurityConfig.parse({
    "security.protocol": "SASL_SSL", "sasl.jaas.config": f"{module} required useTicketCache=true;",
}))
""",
    "logs": """
import subprocess, sys
from importlib.util import find_spec
assert not find_spec("pyspark")
assert not find_spec("pandas")
logs = ["--zookeeper-logs", "logs", "--servers", "1"]
for words in (["log", "storm", *logs], ["show", "0x579", *logs[:2]],
              ["who", "storm", "t-storm-0", "--at", "2026-11-22T20:41:18.1", *logs],
              ["--help"], ["run", "--help"], ["log", "storm", "--json", *logs]):
    subprocess.run([sys.executable, "-m", "zkaudit", *words], check=True)
""",
    "audit": """
import subprocess, sys
words = "run --zookeeper-logs logs --servers 1 --out out --master local[1]"
subprocess.run([sys.executable, "-m", "zkaudit", *words.split()], check=True)
""",
}
MISSING = {
    "arrow": "extra 'arrow'",
    "cli": "'.[cli]'",
    "codecs": "'.[codecs]'",
    "prometheus": "'.[prometheus]'",
    "sasl": "pure-sasl",
    "kerberos": "'.[kerberos]'",
    "logs": "'.[logs]'",
    "audit": "'.[audit]'",
}
"""What the error names if the extra is not installed."""


def environment(place: Path, requirement: str) -> Path:
    """Make an empty environment, install the requirement, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    python = place / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
    subprocess.run([*pip, requirement], check=True)
    return python


def use(python: Path, extra: str, cwd: Path) -> tuple[int, str]:
    """Use the feature; return the exit status and all output."""
    cwd.mkdir()
    (cwd / "logs").mkdir()
    packed = ROOT / "tests" / "audit" / "corpus" / "recorded" / "with_rules" / "log.1.gz"
    (cwd / "logs" / "log.1").write_bytes(gzip.decompress(packed.read_bytes()))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", USES[extra]],
        cwd=cwd,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in pure Python."""
    out = tmp_path_factory.mktemp("wheel")
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir")
    settings = os.environ | {"ZKCONSUMER_COMPILE": "no"}
    subprocess.run([*command, out, ROOT], check=True, env=settings)
    (found,) = out.glob("*.whl")
    return found


def test_every_extra_is_tested() -> None:
    """A new extra needs a line in both tables."""
    assert set(USES) == set(MISSING) == set(EXTRAS)


@pytest.mark.timeout(1500)  # installing and starting Spark takes a busy machine minutes
@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_extra_alone_gives_its_feature(extra: str, wheel: Path, tmp_path: Path) -> None:
    """Nothing else is installed but the extra and the library itself."""
    python = environment(tmp_path / "env", f"{wheel}[{extra}]")
    status, output = use(python, extra, tmp_path / "use")
    assert status == 0, output


def test_without_its_extra_a_feature_names_it(wheel: Path, tmp_path: Path) -> None:
    """The library alone can be imported. A feature that needs more names the extra."""
    python = environment(tmp_path / "env", str(wheel))
    for extra in sorted(EXTRAS):
        status, output = use(python, extra, tmp_path / extra)
        assert status != 0, extra
        assert MISSING[extra] in output, output
