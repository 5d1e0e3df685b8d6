"""HTTPS with a certificate of the test's own: who trusts it is served, others and plain HTTP are not."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from running_server import RunningServer
from treadle.server.settings import ServerSettings

pytestmark = pytest.mark.model

DAY = datetime.timedelta(days=1)


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine, signed by its own key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - DAY, now + DAY)
    signed = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False).sign(key, hashes.SHA256())
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(smollm2_path: Path, certificate: tuple[Path, Path]) -> Iterator[RunningServer]:
    files = {"tls_certificate": certificate[0], "tls_key": certificate[1]}
    running = RunningServer(smollm2_path, ServerSettings(**files, client_timeout=1))  # type: ignore[arg-type]
    yield running
    running.close()


def test_who_trusts_the_certificate_is_served(secure: RunningServer, certificate: tuple[Path, Path]) -> None:
    body = {"prompt": "Once", "max_tokens": 3, "temperature": 0, "stream": True}
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    with httpx.Client(base_url=secure.url, verify=trusting, timeout=60) as client:
        assert client.get("/health").json() == {"status": "ok"}
        with client.stream("POST", "/v1/completions", json=body) as response:
            assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"
        page = client.get("/", headers={"origin": secure.url})
        assert page.status_code == 200


def test_who_does_not_trust_it_and_plain_http_are_not_served(secure: RunningServer) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{secure.url}/health")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{secure.url.replace('https', 'http')}/health")
