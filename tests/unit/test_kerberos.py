"""Kerberos without a KDC: when tickets are renewed, what a server may answer, what is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer import kerberos as module
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config.jaas import KerberosLogin, kerberos_login, parse_jaas
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.errors import AuthenticationError, ConfigError
from zkconsumer.kerberos import KdcUnavailableError, Kerberos, KerberosExchange
from zkconsumer.zk.security import ZkSecurity

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
KEYTAB = f'{MODULE} required useKeyTab=true keyTab="/a.keytab" principal="alice/h@R"'
LIFE = 100.0
NO_KDC, NO_KEY, OLD_KEY = -1765328228, -1765328189, -1765328353


class GSSError(Exception):
    """As of the library gssapi."""

    def __init__(self, code: int, text: str = "libkrb5's reason") -> None:
        super().__init__(text)
        self.maj_code, self.min_code, self._text = 851968, code + (1 << 32), text

    def get_all_statuses(self, _code: int, _major: bool) -> Iterator[str]:
        yield self._text


class Library:
    """Stands for the library gssapi and a KDC whose tickets live ``LIFE`` seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.fault: int | None = None
        self.stores: list[dict[str, str] | None] = []
        self.used: list[int] = []
        """The number of the ticket of each login."""
        self.exceptions = SimpleNamespace(GSSError=GSSError)
        self.NameType = Enum("NameType", "hostbased_service kerberos_principal")
        self.MechType = Enum("MechType", "kerberos")
        self.RequirementFlag = Enum("RequirementFlag", "mutual_authentication")

    def Name(self, text: str, _kind: object) -> str:
        return text

    def Credentials(self, usage: str, name: str | None, store: dict[str, str] | None) -> Any:
        assert usage == "initiate"
        if self.fault is not None:
            raise GSSError(self.fault)
        self.stores.append(store)
        return SimpleNamespace(number=len(self.stores), lifetime=LIFE)

    def SecurityContext(self, creds: Any, **_given: Any) -> Any:
        self.used.append(creds.number)
        return SimpleNamespace(step=lambda: b"first", complete=False)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Used in place of gssapi, the clock, and threads, which run at once."""
    made = Library()
    monkeypatch.setitem(sys.modules, "gssapi", made)
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now)
    thread = lambda target, **_: SimpleNamespace(start=target)  # noqa: E731
    monkeypatch.setattr(module.threading, "Thread", thread)
    return made


@pytest.fixture
def with_keytab(library: Library, tmp_path: Path) -> Kerberos:
    """An identity with a keytab."""
    keytab = tmp_path / "a.keytab"
    keytab.touch()
    line = f'{MODULE} required useKeyTab=true keyTab="{keytab}" principal="alice@R";'
    return Kerberos(parse_jaas(line), "the.key", "kafka", "the.service")


def test_a_keytab_gets_a_new_ticket_after_80_percent_of_its_life(
    library: Library, with_keytab: Kerberos
) -> None:
    """One ticket serves all logins until then. Each ticket has a cache of its own, in memory."""
    for _ in range(100):
        with_keytab.exchange("h")
        library.now += 10
    assert len(library.stores) == 13
    assert library.used == sorted(library.used)
    caches = {store["ccache"] for store in library.stores if store is not None}
    assert len(caches) == 13
    assert all(cache.startswith("MEMORY:") for cache in caches)


def test_a_kdc_that_is_down_is_asked_while_the_ticket_is_good(
    library: Library, with_keytab: Kerberos, caplog: pytest.LogCaptureFixture
) -> None:
    """Logins use the old ticket meanwhile. When it has ended, the error names the KDC; when the KDC
    is back, the next login succeeds."""
    with_keytab.exchange("h")
    library.fault = NO_KDC
    for _ in range(99):
        library.now += 1
        with_keytab.exchange("h")
    assert set(library.used) == {1}
    assert len(caplog.records) == 2, "at 80 s and at 90 s"
    assert "the old ticket is good for 20 s" in caplog.messages[0]
    library.now += 1
    with pytest.raises(KdcUnavailableError, match=r"the\.key: alice@R .* check that the KDC"):
        with_keytab.exchange("h")
    library.fault = None
    with_keytab.exchange("h")
    assert library.used[-1] == 2


def test_a_ticket_that_a_server_refused_is_replaced(
    library: Library, with_keytab: Kerberos
) -> None:
    """The server may have a new key. Without a KDC the old ticket is kept: perhaps the server has
    only closed the connection."""
    with_keytab.exchange("h")
    with_keytab.renew()
    with_keytab.exchange("h")
    library.fault = NO_KDC
    with_keytab.renew()
    with_keytab.exchange("h")
    assert library.used == [1, 2, 2]


def test_one_ticket_is_replaced_at_a_time(library: Library, with_keytab: Kerberos) -> None:
    """A thread that waits for the KDC is enough, however often servers refuse the old ticket."""
    with_keytab.exchange("h")
    assert with_keytab._renewing.acquire(blocking=False)
    with_keytab.renew()
    with_keytab.exchange("h")
    assert library.used == [1, 1]
    with_keytab._renewing.release()
    with_keytab.renew()
    with_keytab.exchange("h")
    assert library.used == [1, 1, 2]


def test_a_credential_cache_is_read_for_each_login(library: Library) -> None:
    """Another program may renew it."""
    entry = parse_jaas(f"{MODULE} required useTicketCache=true ticketCache=/c;")
    identity = Kerberos(entry, "k", "kafka", "s")
    for _ in range(3):
        identity.exchange("h")
    assert library.stores == [{"ccache": "/c"}] * 3
    library.fault = OLD_KEY
    with pytest.raises(AuthenticationError, match=r"k: of the credential cache /c .*run kinit"):
        identity.exchange("h")


@pytest.mark.parametrize(
    ("code", "words"), [(NO_KEY, "has no key of this principal"), (OLD_KEY, "libkrb5's reason")]
)
def test_a_keytab_that_gets_no_ticket(
    library: Library, with_keytab: Kerberos, code: int, words: str
) -> None:
    """The error has the principal, the keytab, and what to do."""
    library.fault = code
    with pytest.raises(AuthenticationError, match=words) as caught:
        with_keytab.exchange("h")
    assert "alice@R" in str(caught.value)
    assert "klist -k" in str(caught.value)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """For brokers and for ZooKeeper."""
    monkeypatch.setitem(sys.modules, "gssapi", None)
    keys = {"security.protocol": "SASL_SSL", "sasl.jaas.config": KEYTAB + ";"}
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config: .*pip install '\.\[kerberos\]'"):
        KafkaSecurity(SecurityConfig.parse(keys))
    zookeeper = SecurityConfig.parse({"zkconsumer.zookeeper.sasl.jaas.config": KEYTAB + ";"})
    with pytest.raises(ConfigError, match=r"zookeeper\.sasl\.jaas\.config: .*\[kerberos\]"):
        ZkSecurity(zookeeper)


def exchange_with(*answers: bytes) -> KerberosExchange:
    """A login in which the server has sent these. It unwraps what begins with ``w``."""

    def unwrap(data: bytes) -> Any:
        if not data.startswith(b"w"):
            raise GSSError(OLD_KEY)
        return SimpleNamespace(message=data[1:])

    def step(_answer: bytes) -> bytes:
        context.complete = True
        return b""

    context = SimpleNamespace(
        step=step,
        complete=False,
        unwrap=unwrap,
        wrap=lambda data, _encrypt: SimpleNamespace(message=b"W" + data),
    )
    exchange = KerberosExchange(context, b"first", GSSError)
    for answer in answers:
        exchange.auth_bytes()
        exchange.receive(answer)
    return exchange


def test_the_exchange_without_a_layer() -> None:
    """RFC 4752: the client chooses no layer, and no size. A last answer may or may not follow."""
    exchange = exchange_with(b"reply", b"w\7\0\1\0")
    assert not exchange.is_done()
    assert exchange.auth_bytes() == b"W\1\0\0\0"
    assert exchange.is_done()
    exchange.receive(b"")
    assert exchange.is_authenticated()


@pytest.mark.parametrize("answer", [b"w\6\0\1\0", b"w", b"w\1", b"w\1\0\0\0\0", b"x\1\0\0\0", b""])
def test_an_answer_that_is_refused(answer: bytes) -> None:
    """A server that wants a layer, or that does not have the session's key."""
    with pytest.raises(ValueError):
        exchange_with(b"reply", answer)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("useKeyTab=true keyTab=/k principal=a", KerberosLogin("a", "/k", None, None, False)),
        (
            'useKeyTab=TRUE storeKey=true useTicketCache=false debug=true keyTab="/k k" '
            'serviceName="kafka" principal="a/h@R"',
            KerberosLogin("a/h@R", "/k k", None, "kafka", False),
        ),
        ("useTicketCache=true", KerberosLogin(None, None, None, None, False)),
        (
            "useTicketCache=true renewTicket=true serviceName=kafka",
            KerberosLogin(None, None, None, "kafka", True),
        ),
        ("useTicketCache=true ticketCache=/c", KerberosLogin(None, None, "/c", None, False)),
        (
            "useKeyTab=true keyTab=/k principal=a useTicketCache=true ticketCache=/c renewTGT=true",
            KerberosLogin("a", "/k", None, None, False),
        ),
    ],
)
def test_a_login_module_is_understood(options: str, expected: KerberosLogin) -> None:
    """Entries as Hadoop distributions write them."""
    assert kerberos_login(parse_jaas(f"{MODULE} required {options};")) == expected


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("", "useKeyTab=true"),
        ("useKeyTab=true principal=a", "keyTab="),
        ("useKeyTab=true keyTab=/k", "principal="),
        ("useKeyTab=yes keyTab=/k principal=a", "useKeyTab must be true or false"),
        ("useTicketCache=true useFirstPass=true", "does not know the option useFirstPass"),
        ('useTicketCache=true username="anna"', "does not know the option username"),
    ],
)
def test_a_login_module_is_refused(options: str, named: str) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config") as caught:
        SecurityConfig.parse(
            {"security.protocol": "SASL_SSL", "sasl.jaas.config": f"{MODULE} required {options};"}
        )
    assert named in str(caught.value)


def test_a_section_of_a_jaas_file_is_refused() -> None:
    """With what to take from it."""
    with pytest.raises(ValueError, match="only the text inside the braces of KafkaClient"):
        parse_jaas(f"KafkaClient {{ {KEYTAB}; }};")


def test_the_service_has_one_name() -> None:
    """In the key or in the entry, as in Kafka."""
    keys = {
        "security.protocol": "SASL_SSL",
        "sasl.jaas.config": f'{KEYTAB} serviceName="kafka";',
        "sasl.kerberos.service.name": "broker",
    }
    with pytest.raises(ConfigError, match=r"sasl\.kerberos\.service\.name=broker, but"):
        SecurityConfig.parse(keys)


def test_what_has_no_effect_causes_a_warning(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    """A JVM renews the tickets of a cache with kinit."""
    line = f"{MODULE} required useTicketCache=true renewTGT=true;"
    keys = {
        "security.protocol": "SASL_SSL",
        "sasl.jaas.config": line,
        "zkconsumer.zookeeper.sasl.jaas.config": line,
        "sasl.kerberos.kinit.cmd": "/usr/bin/kinit",
        "sasl.kerberos.ticket.renew.window.factor": "0.8",
    }
    config = SecurityConfig.parse(keys)
    warnings = "\n".join(config.warnings)
    for words in ("sasl.kerberos.kinit.cmd has no effect", "window.factor"):
        assert words in warnings
    KafkaSecurity(config)
    ZkSecurity(config)
    assert [message.partition(": let")[0] for message in caplog.messages] == [
        "sasl.jaas.config: renewTGT has no effect",
        "zkconsumer.zookeeper.sasl.jaas.config: renewTGT has no effect",
    ]


def test_the_names_that_zookeeper_may_give(library: Library, tmp_path: Path) -> None:
    """It may be configured to leave out host and realm."""
    keytab = tmp_path / "k"
    keytab.touch()
    line = KEYTAB.replace("/a.keytab", str(keytab)) + ";"
    keys = SecurityConfig.parse({"zkconsumer.zookeeper.sasl.jaas.config": line})
    found = {who for scheme, who in ZkSecurity(keys).identities if scheme == "sasl"}
    assert found == {"alice/h@R", "alice/h", "alice@R", "alice"}
