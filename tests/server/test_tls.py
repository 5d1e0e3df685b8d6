"""HTTPS with a certificate of the test's own: who trusts it is served, others and plain HTTP are not."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from patience import PATIENCE_SECONDS
from running_server import RunningServer
from treadle.errors import UsageError
from treadle.server.keys import Keyring
from treadle.server.reload import Reload
from treadle.server.settings import ServerSettings
from treadle.server.tls import certificate_fault, check_certificate

DAY = datetime.timedelta(days=1)


NO_PASSWORD = serialization.NoEncryption()


def write_certificate(
    folder: Path,
    *,
    begins: datetime.timedelta = -DAY,
    ends: datetime.timedelta = DAY,
    encryption: serialization.KeySerializationEncryption = NO_PASSWORD,
) -> tuple[Path, Path]:
    """A certificate for this machine, signed by its own key, valid from and until so long from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now + begins, now + ends
    )
    signed = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False).sign(key, hashes.SHA256())
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return certificate, private


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(smollm2_path: Path, certificate: tuple[Path, Path]) -> Iterator[RunningServer]:
    files = {"tls_certificate": certificate[0], "tls_key": certificate[1]}
    running = RunningServer(smollm2_path, ServerSettings(**files))  # type: ignore[arg-type]
    yield running
    running.close()


@pytest.mark.model
def test_who_trusts_the_certificate_is_served(secure: RunningServer, certificate: tuple[Path, Path]) -> None:
    body = {"prompt": "Once", "max_tokens": 3, "temperature": 0, "stream": True}
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    with httpx.Client(base_url=secure.url, verify=trusting, timeout=PATIENCE_SECONDS) as client:
        assert client.get("/health").json() == {"status": "ok"}
        with client.stream("POST", "/v1/completions", json=body) as response:
            assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"
        page = client.get("/", headers={"origin": secure.url})
        assert page.status_code == 200


@pytest.mark.model
def test_who_does_not_trust_it_and_plain_http_are_not_served(secure: RunningServer) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{secure.url}/health", timeout=PATIENCE_SECONDS)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{secure.url.replace('https', 'http')}/health", timeout=PATIENCE_SECONDS)


@pytest.mark.model
@pytest.mark.parametrize(("client_timeout", "are_ended"), [(10_000.0, False), (0.5, True)])
def test_handshakes_that_do_not_end_are_connections(
    smollm2_path: Path, certificate: tuple[Path, Path], client_timeout: float, are_ended: bool
) -> None:
    files = {"tls_certificate": certificate[0], "tls_key": certificate[1]}
    settings = ServerSettings(max_connections=2, client_timeout=client_timeout, **files)  # type: ignore[arg-type]
    running = RunningServer(smollm2_path, settings)
    address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
    try:
        with ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection(address, PATIENCE_SECONDS)) for _ in range(2)]
            if are_ended:
                assert all(map(ended, silent))
            else:
                assert ended(stack.enter_context(socket.create_connection(address, PATIENCE_SECONDS)))
            running.close()  # which does not wait for them
    finally:
        running.close()


def ended(connection: socket.socket) -> bool:
    """Wait until the other side ends a connection, be it after an alert."""
    with suppress(ConnectionResetError):
        while connection.recv(1024):
            pass
    return True


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [(-DAY, DAY, None), (-2 * DAY, -DAY, "certificate has expired"), (DAY, 2 * DAY, "certificate is not yet valid")],
)
def test_a_certificate_that_clients_will_refuse_is_noticed(
    tmp_path: Path, begins: datetime.timedelta, ends: datetime.timedelta, expected: str | None
) -> None:
    assert certificate_fault(*write_certificate(tmp_path, begins=begins, ends=ends)) == expected


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    certificate, key = write_certificate(tmp_path / "a")
    _, locked = write_certificate(tmp_path / "b", encryption=serialization.BestAvailableEncryption(b"password"))
    check_certificate(certificate, key)
    for first, second in ((certificate, locked), (key, key), (certificate, certificate), (certificate, tmp_path)):
        with pytest.raises(UsageError, match="cannot be used"):
            check_certificate(first, second)


def serial_number(context: ssl.SSLContext) -> int:
    """Which certificate a new connection is shown."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = write_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    reload = Reload(ServerSettings(tls_certificate=certificate, tls_key=key), Keyring(), context)
    first = serial_number(context)
    write_certificate(tmp_path, ends=-DAY / 2)
    with caplog.at_level(logging.INFO, logger="treadle.server"):
        reload()
        second = serial_number(context)
        old_key = key.read_bytes()
        write_certificate(tmp_path)
        key.write_bytes(old_key)
        reload()
    assert first != second == serial_number(context)
    assert [record.levelname for record in caplog.records if record.name == "treadle.server"] == ["WARNING", "ERROR"]
    assert "has expired" in caplog.text
