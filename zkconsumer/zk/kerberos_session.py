"""Kerberos on a connection to ZooKeeper, instead of kazoo's SASL.

For Kerberos, kazoo's pure-sasl needs a library that is no longer maintained. kazoo's connection
thread calls it.
"""

from __future__ import annotations

from typing import Any

from kazoo.exceptions import AuthFailedError, ConnectionDropped
from kazoo.protocol.serialization import SASL

from zkconsumer.config.jaas import JaasEntry
from zkconsumer.kerberos import KdcUnavailableError, Kerberos, KerberosExchange


class KerberosSession:
    """The logins of one client.

    Args:
        entry: the checked JAAS entry of the module ``Krb5LoginModule``.
        key: its configuration key, for errors.

    Raises the ConfigError of ``Kerberos``.
    """

    def __init__(self, entry: JaasEntry, key: str) -> None:
        self.identity = Kerberos(entry, key, "zookeeper", f"serviceName in {key}")
        self.no_ticket: str | None = None
        """Why there is currently no ticket."""
        self._exchange: KerberosExchange

    def begin(self, host: str) -> None:
        """Get the ticket before connecting. While a KDC is being asked, nothing would keep the
        session of an open connection alive.

        Raises ConnectionDropped if no KDC is reachable, and AuthenticationError.
        """
        try:
            self._exchange = self.identity.exchange(host)
        except KdcUnavailableError as error:
            self.no_ticket = str(error)
            raise ConnectionDropped(self.no_ticket) from None
        self.no_ticket = None

    def log_in(self, connection: Any, timeout: float, rounds: int) -> None:
        """Log in on kazoo's connection, with at most ``rounds`` requests.

        Raises AuthFailedError, and the errors of sending and receiving.
        """
        exchange = self._exchange
        for xid in range(1, rounds + 1):
            connection._submit(SASL(exchange.auth_bytes()), timeout, xid)
            try:
                header, buffer, offset = connection._read_header(timeout)
            except ConnectionDropped as error:  # a server's way to refuse a client
                self.identity.renew()
                raise AuthFailedError("the server closed the connection") from error
            if header.xid != xid or header.err:
                raise AuthFailedError(f"the server's answer has the error code {header.err}")
            try:
                exchange.receive(SASL.deserialize(buffer, offset)[0] or b"")
            except ValueError as error:
                raise AuthFailedError(str(error)) from None
            if exchange.is_done():
                return
