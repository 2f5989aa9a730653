"""Encryption and authentication of connections to ZooKeeper.

kazoo does the exchanges, except for Kerberos. This module provides their parts, names the key to
correct after a failure, and keeps secrets out of kazoo's log. Any thread.
"""

from __future__ import annotations

import logging
import ssl
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from kazoo.protocol.serialization import SASL, Auth, Connect
from kazoo.security import ACL, make_acl, make_digest_acl_credential

from zkconsumer.config.security_keys import NO_SECURITY, SecurityKeys
from zkconsumer.config.values import HIDDEN, KERBEROS
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from zkconsumer.zk.kerberos_session import KerberosSession

_SASL_KEY: Final = "zkconsumer.zookeeper.sasl.jaas.config"
_DIGEST_KEY: Final = "zkconsumer.zookeeper.digest"


class ZkSecurity:
    """The security of all connections of one client.

    Args:
        keys: checked configuration; without it, no TLS and no identity.
        also: one more digest identity as ``user:password``, which is not a secret.

    Raises ConfigError if certificates are unreadable, or a library is missing.
    """

    def __init__(self, keys: SecurityKeys | None = None, also: str | None = None) -> None:
        self._also = also
        self._keys = keys = NO_SECURITY if keys is None else keys
        self.context: ssl.SSLContext | None = None
        """The TLS context; None without TLS."""
        if keys.zookeeper_ssl_client_enable:
            from zkconsumer.tls import for_zookeeper

            self.context = for_zookeeper(keys)
        self._login = login = keys.zookeeper_login
        self.kerberos: KerberosSession | None = None
        """For SASL GSSAPI; None without it."""
        if login is not None and login.module == KERBEROS:
            from zkconsumer.zk.kerberos_session import KerberosSession

            self.kerberos = KerberosSession(login, _SASL_KEY)
        elif login is not None and find_spec("puresasl") is None:
            raise ConfigError([f"{_SASL_KEY} needs a library: run pip install pure-sasl"])

    def __repr__(self) -> str:
        return f"ZkSecurity({self.identity})"

    @property
    def identity(self) -> str:
        """This client's identity as text, with the key that sets it."""
        keys = self._keys
        if keys.zookeeper_digest is not None:
            user = keys.zookeeper_digest.value.partition(":")[0]
            return f"the digest user {user} ({_DIGEST_KEY})"
        login = self._login
        if self.kerberos is not None:
            return f"the SASL user {self.kerberos.identity.principal} ({_SASL_KEY})"
        if login is not None:
            return f"the SASL user {login.options['username'].value} ({_SASL_KEY})"
        if self.context is not None and keys.zookeeper_ssl_keystore_location is not None:
            return "the owner of the certificate in zookeeper.ssl.keystore.location"
        return f"a client without identity (set {_DIGEST_KEY} or {_SASL_KEY})"

    @property
    def identities(self) -> tuple[tuple[str, str | None], ...]:
        """Scheme and id of this client's identities in ACLs. An id of None matches every id."""
        identities: list[tuple[str, str | None]] = [("world", "anyone"), ("ip", None)]
        keys = self._keys
        if keys.zookeeper_digest is not None:
            user, _, password = keys.zookeeper_digest.value.partition(":")
            identities.append(("digest", make_digest_acl_credential(user, password)))
        if self.kerberos is not None:
            identities += (("sasl", name) for name in self.kerberos.identity.short_names)
        elif self._login is not None:
            identities.append(("sasl", self._login.options["username"].value))
        if self.context is not None and keys.zookeeper_ssl_keystore_location is not None:
            identities.append(("x509", None))
        return tuple(identities)

    @property
    def acl(self) -> list[ACL] | None:
        """The ACL of the znodes that this client creates; None if all clients may write them.

        Source: Kafka's ``ZkData.defaultAcls``: all permissions for the creator, reading for the
        world.
        """
        if not self._keys.zookeeper_set_acl:
            return None
        return [make_acl("auth", "", all=True), make_acl("world", "anyone", read=True)]

    @property
    def sasl(self) -> dict[str, str] | None:
        """The value for kazoo's argument ``sasl_options``; ``None`` without a login."""
        if self._login is None:
            return None
        if self.kerberos is not None:
            return {"mechanism": "GSSAPI"}
        options = self._login.options
        return {
            "mechanism": "DIGEST-MD5",
            "username": options["username"].value,
            "password": options["password"].value,
        }

    @property
    def auth_data(self) -> list[tuple[str, str]]:
        """The digest identities for kazoo's argument ``auth_data``."""
        digest = self._keys.zookeeper_digest
        credentials = [] if digest is None else [digest.value]
        return [
            ("digest", credential)
            for credential in (*credentials, *([self._also] if self._also else []))
        ]

    def sasl_refused(self) -> str:
        """Return the error message if SASL has failed."""
        return f"ZooKeeper refuses {self.identity}; nothing is tried again"

    def tls_refused(self, error: ssl.SSLError) -> str | None:
        """Return the error message if TLS failed permanently; None if only the connection broke."""
        from zkconsumer.tls import certificate_fault

        why = certificate_fault(error, "zookeeper.ssl.")
        if why is None:
            return None
        if why.startswith("it does not speak TLS"):
            why += "; with zookeeper.ssl.client.enable=true, zookeeper.connect names secure ports"
        return why


class HideSecrets(logging.Filter):
    """Removes secrets from kazoo's log messages: login requests and session passwords."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove secrets from the record. Return false to drop the record."""
        if "passwd" in str(record.msg):
            return False
        if isinstance(record.args, tuple):
            record.args = tuple(_hidden(value) for value in record.args)
        return True


def _hidden(value: Any) -> Any:
    if isinstance(value, Auth):
        return f"Auth(scheme={value.scheme!r}, auth={HIDDEN})"
    if isinstance(value, Connect):
        return repr(value._replace(passwd=HIDDEN))
    return f"SASL({HIDDEN})" if isinstance(value, SASL) else value
