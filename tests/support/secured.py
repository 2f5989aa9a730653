"""A cluster whose brokers and ZooKeeper are secured: every protocol at its own port.

Makes certificates with the library ``cryptography`` (installed for tests), and users whose
passwords are new for each cluster. Used from one thread.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.kerberos import REALM, Kdc, jaas
from zkconsumer.servers.kraft import Voter, format_storage, kraft_spec, new_cluster_id
from zkconsumer.servers.local_cluster import LocalCluster
from zkconsumer.servers.servers import STOP_SECONDS, Server, ServerSpec, broker_spec, zookeeper_spec
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.waiting import free_port

USER: Final = "alice"
REAUTH_MS: Final = 2000
"""How long a connection with SASL_PLAINTEXT and PLAIN may last after a log-in."""
_HOST: Final = "127.0.0.1"
_HASHED: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_DIGEST: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"


class Authority:
    """A certificate authority with its own key. Files are written below ``directory``.

    ``ca`` is the PEM file with its certificate.
    """

    def __init__(self, directory: Path, name: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca = directory / "ca.pem"
        self.ca.write_text(self._signed(self._name, self._key.public_key(), None))

    def issue(self, name: str, hosts: tuple[str, ...] = ()) -> Path:
        """Return a PEM file with a new private key and its certificate chain.

        ``hosts`` are the addresses or names that it is good for.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
        path = self._directory / f"{name}.pem"
        chain = self._signed(subject, key.public_key(), hosts) + self.ca.read_text()
        path.write_text(private + chain)
        path.chmod(0o600)
        return path

    def java_stores(self, name: str) -> dict[str, str]:
        """The properties of a broker with what ``issue`` has written as ``name``. In PKCS #12,
        because brokers before 2.7 read no PEM."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import pkcs12

        pem = (self._directory / f"{name}.pem").read_bytes()
        key = serialization.load_pem_private_key(pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        own, *others = x509.load_pem_x509_certificates(pem)
        password = secrets.token_hex(12)
        sealed = serialization.BestAvailableEncryption(password.encode())
        trusted = [pkcs12.PKCS12Certificate(each, b"authority") for each in others]
        contents = {
            "keystore": pkcs12.serialize_key_and_certificates(
                name.encode(), key, own, others, sealed
            ),
            "truststore": pkcs12.serialize_java_truststore(trusted, sealed),
        }
        found = {"ssl.key.password": password}
        for kind, content in contents.items():
            path = self._directory / f"{name}-{kind}.p12"
            path.write_bytes(content)
            found[f"ssl.{kind}.type"] = "PKCS12"
            found[f"ssl.{kind}.location"] = str(path)
            found[f"ssl.{kind}.password"] = password
        return found

    def _signed(self, subject: object, public: object, hosts: tuple[str, ...] | None) -> str:
        """A certificate; of the authority itself without ``hosts``."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)  # type: ignore[arg-type]
            .issuer_name(self._name)
            .public_key(public)  # type: ignore[arg-type]
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), True)
        )
        if hosts:
            names: list[x509.GeneralName] = [
                x509.IPAddress(ipaddress.ip_address(host))
                if host[0].isdigit()
                else x509.DNSName(host)
                for host in hosts
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM).decode()


class SecuredCluster(LocalCluster):
    """One ZooKeeper and one broker, which offer every protocol.

    With Kafka 4 the two are independent: ZooKeeper is for groups.

    ``port`` of the broker and of ZooKeeper are those without security, for tests that prepare
    something. ZooKeeper's ``secure_port`` uses TLS and requires a client certificate. ``client``
    creates the configuration of a client.
    """

    def __init__(self, kafka: str, kdc: Kdc) -> None:
        super().__init__(kafka, 1)
        self.kdc: Final = kdc
        """It knows the user ``alice`` and the service ``kafka``."""
        self._oldest = kafka == "0.9"
        """Then each protocol has one listener, and the only mechanism is GSSAPI."""
        self._old = self._oldest or kafka == "1.1"
        newer = () if self._old else ("OAUTHBEARER",)  # since 2.0
        self.mechanisms: Final = ("PLAIN", *_HASHED, "GSSAPI", *newer)
        self._zookeepers = 1
        self.password: Final = secrets.token_hex(12)
        """Of the user ``alice``, everywhere."""
        self._inner = secrets.token_hex(12)
        self.ports: Final = {
            name: free_port() for name in ("PLAINTEXT", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL")
        }
        """Port of each of the broker's listeners."""
        if self._oldest:
            self.ports["MTLS"] = self.ports["SSL"]
        self.secure_port: Final = free_port()
        """ZooKeeper's port with TLS."""
        self.zookeeper_data: Path
        """The directory of ZooKeeper's transaction logs and snapshots."""
        self.certificates: Path
        self.authority: Authority

    def client(
        self, protocol: str, mechanism: str | None = None, mtls: bool = False
    ) -> dict[str, str]:
        """Return the properties of a client that is allowed in."""
        found = {"security.protocol": protocol}
        if protocol.endswith("SSL"):
            found["ssl.truststore.type"] = "PEM"
            found["ssl.truststore.location"] = str(self.authority.ca)
        if mtls:
            found["ssl.keystore.type"] = "PEM"
            found["ssl.keystore.location"] = str(self.certificates / "client.pem")
        if mechanism is not None:
            found["sasl.mechanism"] = mechanism
            found["sasl.jaas.config"] = (
                jaas(f"{USER}@{REALM}", self.kdc.keytab(USER))
                if mechanism == "GSSAPI"
                else self.jaas(mechanism, USER, self.password)
            )
        return found

    @staticmethod
    def jaas(mechanism: str, user: str, password: str) -> str:
        """Return the line of a client's JAAS configuration."""
        if mechanism == "OAUTHBEARER":
            return f'{_OAUTH} required unsecuredLoginStringClaim_sub="{user}";'
        module = {"PLAIN": _PLAIN, "DIGEST-MD5": _DIGEST}.get(mechanism, _SCRAM)
        return f'{module} required username="{user}" password="{password}";'

    def at(self, listener: str) -> str:
        """The address ``127.0.0.1:PORT`` of one of the broker's listeners."""
        return f"{_HOST}:{self.ports[listener]}"

    def _start_zookeepers(self, supervisor: Supervisor, root: Path) -> None:
        self.certificates = root / "certificates"
        self.authority = Authority(self.certificates, "zkconsumer test authority")
        self.authority.issue("server", (_HOST,))
        self.zookeeper_data = root / "data" / "zookeeper"
        self.authority.issue("client")
        spec = zookeeper_spec("3.9" if self.kraft else self.kafka, root)
        jaas = root / "conf" / "zookeeper.jaas"
        jaas.write_text(
            f'Server {{ {_DIGEST} required user_{USER}="{self.password}" '
            f'user_broker="{self._inner}"; }};\n'
        )
        jaas.chmod(0o600)
        config = Path(spec.argv[-1])
        store = self.certificates / "server.pem"
        extra: dict[str, object] = {
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        }
        encrypted = {  # since ZooKeeper 3.5
            "secureClientPort": self.secure_port,
            "secureClientPortAddress": _HOST,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "authProvider.2": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
            "ssl.keyStore.location": store,
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": self.authority.ca,
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
        }
        with config.open("a") as file:
            extra |= {} if self._old else encrypted
            file.writelines(f"{key}={value}\n" for key, value in extra.items())
        flags = (f"-Djava.security.auth.login.config={jaas}",)
        self._servers = [Server(supervisor, _with_flags(spec, flags))]
        self._servers[0].start()

    def _launch_kraft(self, supervisor: Supervisor, root: Path) -> None:
        self._start_zookeepers(supervisor, root)
        quorum = [Voter(0, free_port())]
        given = dict(self._listeners())
        given["advertised.listeners"] = given["listeners"]
        given["listeners"] += f",CONTROLLER://{_HOST}:{quorum[0].port}"
        given["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
        port = self.ports["PLAINTEXT"]
        spec = kraft_spec(self.kafka, root, 0, 1, port, quorum, given)
        self._servers.append(Server(supervisor, _with_flags(spec, self.kdc.java_flags)))
        users: list[str] = []
        for name in _HASHED:
            users += "--add-scram", f"{name}=[name={USER},password={self.password}]"
        format_storage(supervisor, self.kafka, root, [spec.name], new_cluster_id(), *users)
        self._servers[-1].start()
        for server in self._servers:
            server.wait_ready()

    def _broker(self, supervisor: Supervisor, root: Path, broker_id: int) -> Server:
        self._servers[0].wait_ready()
        zookeeper = self._servers[0].port
        spec = broker_spec(
            self.kafka, root, broker_id, 1, [zookeeper], self._listeners(), self.ports["PLAINTEXT"]
        )
        self._add_users(zookeeper)
        jaas = root / "conf" / "broker.jaas"
        jaas.write_text(f"KafkaServer {{ {self.kdc.service('kafka')} }};\n")
        flags = f"-Djava.security.auth.login.config={jaas}", "-Dzookeeper.sasl.client=false"
        flags = (*self.kdc.java_flags, *(flags if self._oldest else ()))
        return Server(supervisor, _with_flags(spec, flags))

    def _listeners(self) -> Mapping[str, str]:
        # MTLS comes after SSL: clients take the first listener of a protocol, except where a test
        # names the port itself.
        listeners = ",".join(
            f"{name}://{_HOST}:{port}"
            for name, port in self.ports.items()
            if not (self._oldest and name == "MTLS")
        )
        if self._oldest:
            return {
                "listeners": listeners,
                "ssl.client.auth": "requested",
                "sasl.kerberos.service.name": "kafka",
                **self.authority.java_stores("server"),
            }
        protocols = ",".join(f"{n}:{'SSL' if n == 'MTLS' else n}" for n in self.ports)
        found = {
            "listeners": listeners,
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(self.mechanisms),
            "sasl.kerberos.service.name": "kafka",
            "listener.name.mtls.ssl.client.auth": "required",
            **self.authority.java_stores("server"),
        }
        for name in ("sasl_plaintext", "sasl_ssl"):
            prefix = f"listener.name.{name}"
            found[f"{prefix}.plain.sasl.jaas.config"] = (
                f'{_PLAIN} required user_{USER}="{self.password}";'
            )
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                found[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{_SCRAM} required;"
            found[f"{prefix}.gssapi.sasl.jaas.config"] = self.kdc.service("kafka")
            if "OAUTHBEARER" in self.mechanisms:
                found[f"{prefix}.oauthbearer.sasl.jaas.config"] = (
                    f'{_OAUTH} required unsecuredValidatorAllowableClockSkewMs="3000" '
                    'unsecuredLoginStringClaim_sub="broker";'
                )
        # Whoever comes this way has to log in again and again.
        found["listener.name.sasl_plaintext.plain.connections.max.reauth.ms"] = str(REAUTH_MS)
        return found

    def _add_users(self, zookeeper: int) -> None:
        """Write the users of SCRAM, as ``kafka-configs`` does before a broker is there."""
        from kazoo.client import KazooClient

        value = {name: _scram(name, self.password) for name in _HASHED}
        client = KazooClient(f"{_HOST}:{zookeeper}")
        client.start(STOP_SECONDS)
        try:
            path = f"/config/users/{USER}"
            if not client.exists(path):
                data = json.dumps({"version": 1, "config": value}).encode()
                client.create(path, data, makepath=True)
        finally:
            client.stop()
            client.close()


def _scram(mechanism: str, password: str) -> str:
    """A broker's record of a SCRAM user (RFC 5802; Kafka's ScramCredentialUtils)."""
    import base64
    import hashlib
    import hmac

    name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    salt, rounds = os.urandom(16), 4096
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, rounds)
    client = hmac.new(salted, b"Client Key", name).digest()
    parts = {
        "salt": salt,
        "stored_key": hashlib.new(name, client).digest(),
        "server_key": hmac.new(salted, b"Server Key", name).digest(),
    }
    texts = [f"{key}={base64.b64encode(value).decode()}" for key, value in parts.items()]
    return ",".join([*texts, f"iterations={rounds}"])


def _with_flags(spec: ServerSpec, flags: tuple[str, ...]) -> ServerSpec:
    from dataclasses import replace

    return replace(spec, argv=(spec.argv[0], *flags, *spec.argv[1:]))
