"""The security keys: encryption and login for brokers and ZooKeeper.

Names and meanings are those of Kafka 3.9's clients (``SslConfigs``, ``SaslConfigs``) and, for
``zookeeper.ssl.*``, of Kafka's brokers; keys that start with ``zkconsumer.`` are this library's.
Holds values only: the files that they name are read where connections are made. Immutable; any
thread may read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from zkconsumer.config.key_table import OWN, Check, Row, key, one_of, rows_of, rule, word
from zkconsumer.config.values import DIGEST, KERBEROS, OAUTH, PLAIN, SCRAM, Password

if TYPE_CHECKING:
    from zkconsumer.config.jaas import JaasEntry

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final[Mapping[str, str]] = {
    "PLAIN": PLAIN,
    "SCRAM-SHA-256": SCRAM,
    "SCRAM-SHA-512": SCRAM,
    "OAUTHBEARER": OAUTH,
    "GSSAPI": KERBEROS,
}
"""Each mechanism of SASL, and the login module of its ``sasl.jaas.config``."""
_STORE_TYPES: Final = ("PEM", "JKS", "PKCS12")
_TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_RENEWED: Final = (
    "with a keytab, a new ticket is requested after 80 % of the old one's lifetime; tickets in a "
    "cache are not renewed"
)
_SPOKEN: Final = "the newest version supported by both is used; see ssl.enabled.protocols"


def _parsed(line: str) -> JaasEntry:
    from zkconsumer.config.jaas import parse_jaas

    return parse_jaas(line)


def _jaas_fault(*modules: str) -> Check:
    def fault(value: Password) -> str | None:
        from zkconsumer.config.sasl_rules import entry_fault

        return entry_fault(value, modules)

    passwords = ", ".join(module for module in modules if module != KERBEROS)
    return Check(
        f'`MODULE required username="..." password="...";` ({passwords}), or '
        '`com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="..." '
        'principal="...";`',
        fault,
    )


def _renewal(what: str) -> Any:
    return key(what, importance="low", since="0.9", ignored=_RENEWED)


def _service_fault(value: str) -> str | None:
    return None if re.fullmatch(r"[^\s/@]+", value) else "must be a name without / and @"


def _digest_fault(value: Password) -> str | None:
    user, colon, password = value.value.partition(":")
    return None if user and colon and password else "must be USER:PASSWORD"


def _versions_fault(value: str) -> str | None:
    names = [name.strip() for name in value.split(",")]
    wrong = [name for name in names if name not in _TLS_VERSIONS]
    return f"{wrong[0]!r} is not one of {', '.join(_TLS_VERSIONS)}" if wrong else None


def _token_url_fault(value: str) -> str | None:
    parts = urlsplit(value)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return None
    return (
        "must be file:///PATH of a file with a token: no token is fetched over HTTP; let a program "
        "of your own write the file, or set zkconsumer.sasl.oauthbearer.token.provider"
    )


def _provider_fault(value: object) -> str | None:
    if callable(value):
        return None
    legal = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value)
    return None if legal else "must be MODULE:FUNCTION, or a function where a mapping is given"


def _store_fault(value: str) -> str | None:
    return None if value.upper() in _STORE_TYPES else f"must be {' or '.join(_STORE_TYPES)}"


_STORE_TYPE: Final = Check("PEM; the error for another type shows how to convert it", _store_fault)


_ENDPOINT_CHECK: Final = Check(
    "https or empty",
    lambda value: None if value.lower() in ("https", "") else "must be https, or empty",
)


class ListenerChoice(NamedTuple):
    """The values of ``security.protocol`` and ``zkconsumer.listener.name`` (case-insensitive),
    which select one of a broker's listeners."""

    protocol: str
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class SecurityKeys:
    """The security keys, shared by members (`ConsumerKeys`) and tools (`SecurityConfig`)."""

    security_protocol: str = key(
        "Whether connections to brokers use TLS and SASL. The client connects to a broker's "
        "first listener of this protocol",
        default="PLAINTEXT",
        check=one_of(*PROTOCOLS),
        since="0.9",
    )
    listener_name: str | None = key(
        "Name of the brokers' listener to connect to, such as `EXTERNAL`, if brokers register in "
        "ZooKeeper. Its protocol must be `security.protocol`. Without this key, a broker's "
        "listeners of that protocol are tried in the order in which it registered them",
        check=word("letters, digits, . _ -"),
        since=OWN,
    )
    sasl_mechanism: str = key(
        "How this client authenticates, with `SASL_SSL` and `SASL_PLAINTEXT`. GSSAPI is Kerberos",
        default="GSSAPI",
        check=one_of(*MECHANISMS),
        since="0.9",
    )
    sasl_jaas_config: Password | None = key(
        "User and password, or principal and keytab, as a line of a JAAS file. With OAUTHBEARER, "
        '`unsecuredLoginStringClaim_sub="USER"` makes an unsigned token, for tests',
        check=_jaas_fault(PLAIN, SCRAM, OAUTH, KERBEROS),
        since="0.10.2",
    )
    sasl_kerberos_service_name: str | None = key(
        "With GSSAPI, the first part of the brokers' principals (`kafka/HOST@REALM`). Without this "
        "key it is `serviceName` of `sasl.jaas.config`, or `kafka`",
        check=Check("a name without / and @", _service_fault),
        since="0.9",
    )
    sasl_kerberos_kinit_cmd: str | None = _renewal(
        "Program that the JVM runs to renew the tickets in a cache"
    )
    sasl_kerberos_ticket_renew_window_factor: str | None = _renewal(
        "Fraction of a ticket's lifetime after which it is renewed"
    )
    sasl_kerberos_ticket_renew_jitter: str | None = _renewal("Random jitter of the renewal time")
    sasl_kerberos_min_time_before_relogin: str | None = _renewal(
        "Minimum time between two logins by the JVM, in ms"
    )
    sasl_oauthbearer_token_endpoint_url: str | None = key(
        "`file:///PATH` of a file that holds a token. It is read for every new connection, so "
        "another program may renew it",
        check=Check("file:///PATH", _token_url_fault),
        since="3.1",
    )
    sasl_oauthbearer_token_provider: Any = key(
        "A Python function without arguments that returns a token; it is called for every new "
        "connection. In a file: MODULE:FUNCTION",
        check=Check("MODULE:FUNCTION, or a function", _provider_fault),
        since=OWN,
    )
    ssl_truststore_location: str | None = key(
        "PEM file with the certificates of the authorities that sign brokers' certificates. "
        "Without this key, those of the operating system are used",
        since="0.9",
    )
    ssl_truststore_certificates: str | None = key(
        "The same certificates as text, instead of a file",
        since="2.7",
    )
    ssl_truststore_type: str | None = key(
        "Format of `ssl.truststore.location`. By default it is recognized from the file",
        check=_STORE_TYPE,
        since="0.9",
    )
    ssl_truststore_password: Password | None = key(
        "Password of a JKS truststore",
        importance="low",
        since="0.9",
        ignored="a PEM truststore has no password",
    )
    ssl_keystore_location: str | None = key(
        "PEM file with this client's private key and its certificate chain, for brokers that "
        "require a client certificate (mTLS)",
        since="0.9",
    )
    ssl_keystore_certificate_chain: str | None = key(
        "This client's certificate chain as text, instead of a file",
        since="2.7",
    )
    ssl_keystore_key: Password | None = key(
        "This client's private key as text, with `ssl.keystore.certificate.chain`",
        since="2.7",
    )
    ssl_keystore_type: str | None = key(
        "Format of `ssl.keystore.location`. By default it is recognized from the file",
        check=_STORE_TYPE,
        since="0.9",
    )
    ssl_keystore_password: Password | None = key(
        "Password of a JKS keystore",
        importance="low",
        since="0.9",
        ignored="a PEM keystore has no password; for its private key, use ssl.key.password",
    )
    ssl_key_password: Password | None = key("Password of this client's private key", since="0.9")
    ssl_endpoint_identification_algorithm: str = key(
        "`https` compares a broker's host name with its certificate. If the value is "
        "empty, any certificate of a trusted authority is accepted for any broker",
        default="https",
        check=_ENDPOINT_CHECK,
        since="0.9",
    )
    ssl_enabled_protocols: str = key(
        "Versions of TLS to use with brokers and ZooKeeper",
        default="TLSv1.2,TLSv1.3",
        check=Check("TLSv1.2, TLSv1.3 or both", _versions_fault),
        importance="low",
        since="0.9",
    )
    ssl_protocol: str | None = key("Version of TLS", importance="low", ignored=_SPOKEN)
    zookeeper_ssl_client_enable: bool = key(
        "Use TLS for connections to ZooKeeper. `zookeeper.connect` must then contain its "
        "secure ports",
        default=False,
        since="2.5",
    )
    zookeeper_clientCnxnSocket: str | None = key(
        "Class of the JVM's connection to ZooKeeper",
        importance="low",
        since="2.5",
        ignored="zookeeper.ssl.client.enable is enough",
    )
    zookeeper_ssl_truststore_location: str | None = key(
        "Like `ssl.truststore.location`, for ZooKeeper",
        since="2.5",
    )
    zookeeper_ssl_truststore_type: str | None = key(
        "Like `ssl.truststore.type`, for ZooKeeper",
        check=_STORE_TYPE,
        since="2.5",
    )
    zookeeper_ssl_truststore_password: Password | None = key(
        "Password of a JKS truststore",
        importance="low",
        since="2.5",
        ignored="a PEM truststore has no password",
    )
    zookeeper_ssl_keystore_location: str | None = key(
        "Like `ssl.keystore.location`, for ZooKeeper. ZooKeeper requires a client certificate by "
        "default",
        since="2.5",
    )
    zookeeper_ssl_keystore_type: str | None = key(
        "Like `ssl.keystore.type`, for ZooKeeper",
        check=_STORE_TYPE,
        since="2.5",
    )
    zookeeper_ssl_keystore_password: Password | None = key(
        "Password of the private key in `zookeeper.ssl.keystore.location`",
        since="2.5",
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = key(
        "Like `ssl.endpoint.identification.algorithm`, for ZooKeeper",
        default="https",
        check=_ENDPOINT_CHECK,
        since="2.5",
    )
    zookeeper_set_acl: bool = key(
        "Only this client's ZooKeeper identity may change the znodes that it creates. Everyone "
        "may read them. All members and tools of the group then need the same identity",
        default=False,
        since="0.9",
    )
    zookeeper_digest: Password | None = key(
        "USER:PASSWORD for ZooKeeper's digest authentication (`addauth digest`)",
        check=Check("USER:PASSWORD", _digest_fault),
        since=OWN,
    )
    zookeeper_sasl_jaas_config: Password | None = key(
        "Login for SASL with ZooKeeper: the line in a JAAS file's `Client` section. User and "
        "password for DIGEST-MD5 need the library pure-sasl: `pip install pure-sasl`",
        check=_jaas_fault(DIGEST, KERBEROS),
        since=OWN,
    )

    @property
    def listener(self) -> ListenerChoice:
        """Which listener of a registered broker to use."""
        return ListenerChoice(self.security_protocol, self.listener_name)

    @property
    def uses_tls(self) -> bool:
        """Whether connections to brokers are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether this client logs in to brokers with SASL."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def login(self) -> JaasEntry | None:
        """The JAAS entry in ``sasl.jaas.config``."""
        return None if self.sasl_jaas_config is None else _parsed(self.sasl_jaas_config.value)

    @property
    def token_file(self) -> str | None:
        """The path in ``sasl.oauthbearer.token.endpoint.url``."""
        url = self.sasl_oauthbearer_token_endpoint_url
        return None if url is None else unquote(urlsplit(url).path)

    @property
    def zookeeper_login(self) -> JaasEntry | None:
        """The JAAS entry in ``zkconsumer.zookeeper.sasl.jaas.config``."""
        line = self.zookeeper_sasl_jaas_config
        return None if line is None else _parsed(line.value)


KEYS: Final[tuple[Row, ...]] = rows_of(SecurityKeys)
"""All rows."""


SECRETS: Final = frozenset(row.name for row in KEYS if row.kind == "password")
"""The keys whose values are never shown."""


@rule(
    "security.protocol",
    "the credentials for `sasl.mechanism` must be given with `SASL_SSL` and `SASL_PLAINTEXT`, "
    "and only with these",
)
def _sasl(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    protocol, mechanism = values["security_protocol"], values["sasl_mechanism"]
    if not protocol.startswith("SASL_"):
        if given & {"sasl_mechanism", "sasl_jaas_config"}:
            return (
                f"security.protocol={protocol} uses no SASL, but sasl.* keys are given: set "
                "SASL_SSL, or SASL_PLAINTEXT where the network is trusted"
            )
        return None
    from zkconsumer.config.sasl_rules import login_fault

    return login_fault(values, MECHANISMS[mechanism])


@rule(
    "ssl.keystore.key",
    "a keystore or truststore must be given as a file or as inline PEM, not both; a private "
    "key needs its certificate chain",
)
def _tls(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if values["ssl_truststore_location"] and values["ssl_truststore_certificates"]:
        return "ssl.truststore.location and ssl.truststore.certificates are both given: keep one"
    chain, private = values["ssl_keystore_certificate_chain"], values["ssl_keystore_key"]
    if values["ssl_keystore_location"] and (chain or private):
        return "ssl.keystore.location and ssl.keystore.key are both given: keep one"
    if (chain is None) != (private is None):
        return "ssl.keystore.certificate.chain and ssl.keystore.key belong together: give both"
    return None


@rule("security.protocol", "certificates need `SSL` or `SASL_SSL`")
def _tls_unused(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    stores = {"ssl_truststore_location", "ssl_truststore_certificates", "ssl_keystore_location"}
    protocol = values["security_protocol"]
    if not given & stores or protocol.endswith("SSL"):
        return None
    return (
        f"security.protocol={protocol} uses no TLS, but certificates are given: set SSL or SASL_SSL"
    )


@rule(
    "zookeeper.set.acl",
    "`zookeeper.set.acl` needs an identity, certificates need `zookeeper.ssl.client.enable`, "
    "and only one identity may be given",
)
def _zookeeper(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if values["zookeeper_digest"] is not None and values["zookeeper_sasl_jaas_config"] is not None:
        return (
            "zkconsumer.zookeeper.digest and zkconsumer.zookeeper.sasl.jaas.config are both given: "
            "keep one"
        )
    tls = values["zookeeper_ssl_client_enable"]
    if not tls and given & {"zookeeper_ssl_truststore_location", "zookeeper_ssl_keystore_location"}:
        return (
            "zookeeper.ssl.client.enable is false, but certificates for ZooKeeper are given: set "
            "it to true"
        )
    known = (
        values["zookeeper_digest"],
        values["zookeeper_sasl_jaas_config"],
        tls and values["zookeeper_ssl_keystore_location"],
    )
    if values["zookeeper_set_acl"] and not any(known):
        return (
            "zookeeper.set.acl=true needs an identity: set zkconsumer.zookeeper.digest, "
            "zkconsumer.zookeeper.sasl.jaas.config or zookeeper.ssl.keystore.location"
        )
    return None


@rule("security.protocol", "`SASL_PLAINTEXT` encrypts nothing", fatal=False)
def _clear_text(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if values["security_protocol"] != "SASL_PLAINTEXT":
        return None
    return (
        "security.protocol=SASL_PLAINTEXT encrypts nothing: anyone who can read the network can "
        "read all messages, and learn the secret, or enough to guess it; prefer SASL_SSL"
    )


RULES: Final = (_sasl, _tls_unused, _tls, _zookeeper, _clear_text)
"""Checks that involve several keys."""


RENAMED: Final[dict[str, str]] = {
    "sasl.username": "sasl.jaas.config",
    "sasl.password": "sasl.jaas.config",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.kerberos.keytab": "sasl.jaas.config",
    "sasl.kerberos.principal": "sasl.jaas.config",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.key.location": "ssl.keystore.location",
}
"""librdkafka's names of the keys, for hints on unknown keys."""

NO_SECURITY: Final = SecurityKeys(**{row.attr: row.default for row in KEYS})  # type: ignore[arg-type]
"""The security of PLAINTEXT brokers and a ZooKeeper without TLS and login."""
