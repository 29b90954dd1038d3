"""Three daemons on the loopback interface, with TLS and a token, and HAProxy before them as haproxy.cfg has it."""

import contextlib
import csv
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import tempfile
import time

import aiohttp

HERE = pathlib.Path(__file__).resolve().parent
TOKEN = "a-token-of-this-check-alone"
# What a client sends, by either protocol.
HEADERS = {"authorization": f"Bearer {TOKEN}"}
# Time for daemons to load their model, and for HAProxy to see it.
UP_S = 120.0
STOP_S = 120.0
DRAIN_S = 300.0
# Of each log, where something failed.
LOG_LINES = 20


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Secrets:
    """A certificate for localhost that signs itself, its key, and a token."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        # HAProxy wants them in one file.
        self.both, self.tokens = folder / "both.pem", folder / "tokens"
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        subprocess.run([*make, "-keyout", self.key, "-out", self.certificate], check=True, stderr=subprocess.DEVNULL)
        self.both.write_bytes(self.certificate.read_bytes() + self.key.read_bytes())
        self.tokens.write_text(f"generate {TOKEN}\n")
        for secret in [self.key, self.both, self.tokens]:
            secret.chmod(0o600)


class Replica:
    """A daemon with a folder of its own, started."""

    def __init__(self, name: str, folder: pathlib.Path, sluiced: str, secrets: Secrets, arguments: list[str]) -> None:
        self.name, self.log = name, folder / "log"
        self.grpc_port, self.https_port = free_ports(2)
        folder.mkdir()
        command = [
            sluiced,
            *("--socket", str(folder / "s")),
            *("--listen", f"127.0.0.1:{self.grpc_port}"),
            *("--http", f"127.0.0.1:{self.https_port}"),
            *("--tls-certificate", str(secrets.certificate)),
            *("--tls-key", str(secrets.key)),
            *("--token-file", str(secrets.tokens)),
            # Whoever brings no token may do nothing.
            *("--roles", ""),
            *("--drain-seconds", "600", "--threads", "1"),
            *arguments,
        ]
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(timeout=STOP_S)


class Cluster:
    """Replicas and HAProxy, which end with the `with` that they are in."""

    def __init__(self, sluiced: str, arguments: list[str]) -> None:
        self.kept = contextlib.ExitStack()
        self.folder = pathlib.Path(self.kept.enter_context(tempfile.TemporaryDirectory(prefix="sluice-cluster-")))
        self.secrets = Secrets(self.folder)
        program = os.path.abspath(sluiced) if os.sep in sluiced else sluiced
        self.replicas: list[Replica] = []
        for number in range(1, 4):
            name = f"replica{number}"
            self.replicas.append(Replica(name, self.folder / name, program, self.secrets, arguments))
            self.kept.callback(kill, self.replicas[-1].process)
        self.grpc_port, self.https_port, stats_port = free_ports(3)
        self.environment = os.environ | {
            "HAPROXY_SOCKET": str(self.folder / "admin.sock"),
            "SLUICE_CERTIFICATE": str(self.secrets.both),
            "SLUICE_CA": str(self.secrets.certificate),
            "SLUICE_GRPC": f"127.0.0.1:{self.grpc_port}",
            "SLUICE_HTTPS": f"127.0.0.1:{self.https_port}",
            "SLUICE_STATS": f"127.0.0.1:{stats_port}",
        }
        for replica in self.replicas:
            self.environment[f"SLUICE_{replica.name.upper()}_GRPC"] = f"127.0.0.1:{replica.grpc_port}"
            self.environment[f"SLUICE_{replica.name.upper()}_HTTPS"] = f"127.0.0.1:{replica.https_port}"

    def __enter__(self) -> "Cluster":
        with self.kept:
            self.log = self.folder / "haproxy.log"
            command = ["haproxy", "-db", "-f", str(HERE / "haproxy.cfg")]
            with open(self.log, "wb") as log:
                self.balancer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)
            self.kept.callback(kill, self.balancer)
            self.wait_until_up()
            # What is kept stays until __exit__, since nothing failed.
            self.kept = self.kept.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.kept.close()

    def servers(self) -> list[dict[str, str]]:
        """HAProxy's statistics of the replicas, of each in both backends."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(self.environment["HAPROXY_SOCKET"])
            admin.sendall(b"show stat\n")
            answer = b"".join(iter(lambda: admin.recv(65536), b"")).decode()
        rows = csv.DictReader(answer.removeprefix("# ").splitlines())
        return [row for row in rows if row["svname"].startswith("replica")]

    def up(self) -> set[str]:
        """The replicas that HAProxy sends requests to."""
        return {row["svname"] for row in self.servers() if row["status"] == "UP" and row["pxname"] == "https_replicas"}

    def running(self, replica: Replica) -> int:
        """Requests that a replica has."""
        return sum(int(row["scur"]) for row in self.servers() if row["svname"] == replica.name)

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + UP_S
        while time.monotonic() < deadline:
            # HAProxy may not have made its socket yet.
            with contextlib.suppress(OSError):
                if len(self.up()) == len(self.replicas):
                    return
            if any(process.poll() is not None for process in [self.balancer, *(replica.process for replica in self.replicas)]):
                raise SystemExit(f"one of them ended\n{self.logs()}")
            time.sleep(0.1)
        raise SystemExit(f"HAProxy reaches {self.up()} alone after {UP_S:.0f} s\n{self.logs()}")

    def logs(self) -> str:
        """The last lines of all."""
        logs = [self.log, *(replica.log for replica in self.replicas)]
        return "\n".join(f"{log}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:]) for log in logs)

    def drain(self, replica: Replica) -> None:
        """Takes it out; returns when its last stream has ended."""
        subprocess.run([HERE / "drain.sh", replica.name], check=True, env=self.environment, timeout=DRAIN_S)

    def session(self) -> aiohttp.ClientSession:
        """For calls over HTTPS, through HAProxy."""
        trust = ssl.create_default_context(cafile=self.secrets.certificate)
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        timeout = aiohttp.ClientTimeout(total=DRAIN_S)
        return aiohttp.ClientSession(f"https://localhost:{self.https_port}", connector=connector, headers=HEADERS, timeout=timeout)


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
