"""A Kerberos KDC on loopback, and a cluster that is secured with it. MIT Kerberos does the work.

Nothing of the machine's own Kerberos is used or changed: all files are below one directory, and
programs that shall use the KDC get ``KRB5_CONFIG``.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

from zkconsumer.servers.local_cluster import LocalCluster
from zkconsumer.servers.servers import Server, ServerSpec, broker_spec, zookeeper_spec
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.waiting import free_port, wait_until

REALM: Final = "ZKCONSUMER.TEST"
HOST: Final = "127.0.0.1"
REAUTH_MS: Final = 2000
"""How long a connection to a broker may last after a login."""
_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
_PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_START_SECONDS: Final = 20.0


class Kdc:
    """A KDC of the realm ``REALM``. Used from one thread.

    ``directory`` is where all files are. Raises RuntimeError if a program is not installed.
    """

    def __init__(self, directory: Path) -> None:
        missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
        if missing:
            raise RuntimeError(
                f"{', '.join(missing)}: not found. These tests start a real KDC: run make kerberos "
                "(Debian and Ubuntu: apt install krb5-kdc krb5-admin-server krb5-user)"
            )
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._port = free_port()
        self.config: Final = directory / "krb5.conf"
        """``krb5.conf``, for ``KRB5_CONFIG`` and ``java.security.krb5.conf``."""
        self._write_files()
        self._run("kdb5_util", "create", "-s", "-W", "-r", REALM, "-P", secrets.token_hex(8))
        self._supervisor = Supervisor()
        self._running = False

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process uses this KDC, and no tickets of the user's own."""
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self._directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{self._directory / 'default.ccache'}",
            "KRB5_CLIENT_KTNAME": str(self._directory / "no.keytab"),
        }

    def start(self) -> None:
        """Start the KDC; return when it listens."""
        program = shutil.which("krb5kdc", path=_PATH)
        log = self._directory / "kdc.out"
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        self._supervisor.start("kdc", ["/usr/bin/env", *variables, str(program), "-n"], log)
        self._running = True
        listening = self._directory / "kdc.log"
        before = listening.read_text().count("commencing operation") if listening.exists() else 0
        wait_until(
            lambda: (
                listening.exists() and listening.read_text().count("commencing operation") > before
            ),
            _START_SECONDS,
            "the KDC listens",
        )

    def stop(self) -> None:
        """Kill the KDC. Its port then refuses connections."""
        if self._running:
            self._supervisor.signal("kdc", signal.SIGKILL)
            wait_until(lambda: self._supervisor.poll("kdc") is not None, 10, "the KDC has ended")
            self._running = False

    def close(self) -> None:
        """End the KDC."""
        self._supervisor.close()

    def add(self, principal: str, *, life: str | None = None) -> Path:
        """Add a principal with a random key; return a keytab with it.

        ``life``: the longest life of its tickets, such as ``5s``.
        """
        limit = f'-maxlife "{life}" ' if life else ""
        self._admin(f"addprinc -randkey {limit}{principal}")
        return self.keytab(principal)

    def keytab(self, principal: str) -> Path:
        """Return a new keytab with a principal's key."""
        path = self._directory / f"{principal.replace('/', '-')}-{secrets.token_hex(4)}.keytab"
        self._admin(f"ktadd -norandkey -k {path} {principal}")
        return path

    def change_key(self, principal: str) -> None:
        """Give a principal a new key. Its keytabs no longer work."""
        self._admin(f"cpw -randkey {principal}")

    def service(self, name: str) -> str:
        """Return the line of a server's JAAS configuration. The server starts without a KDC."""
        principal = f"{name}/{HOST}"
        return jaas(f"{principal}@{REALM}", self.keytab(principal), " isInitiator=false")

    @property
    def java_flags(self) -> tuple[str, ...]:
        """The flags of a JVM that uses this KDC."""
        return (
            f"-Djava.security.krb5.conf={self.config}",
            # Old servers look for the realm there.
            "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        )

    def cache(self, principal: str, keytab: Path, path: Path, life: str | None = None) -> Path:
        """Write a credential cache with a ticket of the principal, as ``kinit`` does."""
        limit = ("-l", life) if life else ()
        self._run("kinit", *limit, "-c", f"FILE:{path}", "-k", "-t", str(keytab), principal)
        return path

    def _admin(self, command: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", command)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(shutil.which(program, path=_PATH)), *arguments],
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode or "while" in done.stdout:  # kadmin.local ends with 0 after errors
            raise RuntimeError(f"{program}: {done.stdout.strip()}")

    def _write_files(self) -> None:
        folder = self._directory
        self.config.write_text(
            f"""[libdefaults]
    default_realm = {REALM}
    dns_lookup_realm = false
    dns_lookup_kdc = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {REALM} = {{
        kdc = 127.0.0.1:{self._port}
    }}
[domain_realm]
    localhost = {REALM}
    127.0.0.1 = {REALM}
"""
        )
        (folder / "kdc.conf").write_text(
            f"""[kdcdefaults]
    kdc_listen = 127.0.0.1:{self._port}
    kdc_tcp_listen = 127.0.0.1:{self._port}
[realms]
    {REALM} = {{
        database_name = {folder}/principal
        key_stash_file = {folder}/stash
        acl_file = {folder}/acl
        supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
        max_life = 1h
        max_renewable_life = 1d
    }}
[logging]
    kdc = FILE:{folder}/kdc.log
    admin_server = FILE:{folder}/admin.log
"""
        )


def jaas(principal: str, keytab: Path, more: str = "") -> str:
    """The line of a client's JAAS configuration with a keytab."""
    return (
        f'{_MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}" '
        f'principal="{principal}"{more};'
    )


def jaas_of_cache(cache: Path, more: str = "") -> str:
    """The line of a client's JAAS configuration with a credential cache."""
    return f'{_MODULE} required useTicketCache=true ticketCache="{cache}"{more};'


class KerberosCluster(LocalCluster):
    """One ZooKeeper and one broker, whose clients log in with Kerberos.

    The broker's ``port`` is without security, for tests that prepare something. ZooKeeper lets
    anyone in, and only who logs in has an identity in access lists.
    """

    def __init__(self, kdc: Kdc, kafka: str) -> None:
        super().__init__(kafka, 1)
        self._kdc = kdc
        self._plain_port, self.sasl_port = free_port(), free_port()

    @property
    def bootstrap(self) -> str:
        """The address of the listener with Kerberos."""
        return f"{HOST}:{self.sasl_port}"

    @property
    def plain(self) -> str:
        """The address of the listener without security."""
        return f"{HOST}:{self._plain_port}"

    def _start_zookeepers(self, supervisor: Supervisor, root: Path) -> None:
        spec = zookeeper_spec(self.kafka, root)
        with Path(spec.argv[-1]).open("a") as file:
            provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
            file.write(f"authProvider.1={provider}\n")
        self._servers = [Server(supervisor, self._kerberized(spec, root, "Server", "zookeeper"))]
        self._servers[0].start()

    def _broker(self, supervisor: Supervisor, root: Path, broker_id: int) -> Server:
        given = {
            "listeners": f"SASL_PLAINTEXT://{self.bootstrap},PLAINTEXT://{self.plain}",
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            # Whoever logs in has to do so again and again; brokers before 2.2 ignore it.
            "connections.max.reauth.ms": str(REAUTH_MS),
        }
        zookeepers = [self.zookeeper_server.port]
        spec = broker_spec(self.kafka, root, broker_id, 1, zookeepers, given, self._plain_port)
        return Server(supervisor, self._kerberized(spec, root, "KafkaServer", "kafka"))

    def _kerberized(self, spec: ServerSpec, root: Path, section: str, service: str) -> ServerSpec:
        file = root / "conf" / f"{spec.name}.jaas"
        file.write_text(f"{section} {{ {self._kdc.service(service)} }};\n")
        flags = (f"-Djava.security.auth.login.config={file}", *self._kdc.java_flags)
        return dataclasses.replace(spec, argv=(spec.argv[0], *flags, *spec.argv[1:]))
