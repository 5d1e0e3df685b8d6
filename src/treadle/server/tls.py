"""The certificate of the server: whether its files fit, what clients will think of it, and reading it anew.

Leaves to others: when (``server.serve``, ``server.reload``).
"""

from __future__ import annotations

import ssl
from pathlib import Path

from treadle.errors import UsageError

__all__ = ["certificate_fault", "check_certificate", "renew_certificate", "server_context"]


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return what connections are secured with; raises OSError for files that ``check_certificate`` has not passed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, certificate, key)
    return context


def check_certificate(certificate: Path, key: Path) -> None:
    """Raise UsageError unless these PEM files can be read, belong together and ask for no password."""
    try:
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
    except OSError as error:
        raise UsageError(
            f"TLS: the certificate and key cannot be used ({certificate}, {key}): {error.strerror or error}",
            hint="give PEM files that belong together, the key without a password",
        ) from None


def certificate_fault(certificate: Path, key: Path) -> str | None:
    """Return why clients that check it will refuse a certificate that ``check_certificate`` has passed.

    That is found out by a handshake in memory, with a client that trusts this very certificate and asks for no name.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        _load(server, certificate, key)
        client.load_verify_locations(certificate)
        _shake_hands(client, server)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return error.reason or str(error)
    return None


def renew_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Use what is in the files now for new connections; raises UsageError and changes nothing if they do not fit."""
    check_certificate(certificate, key)
    _load(context, certificate, key)


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    # A key with a password would otherwise ask for it, and nobody may be there to type it.
    context.load_cert_chain(certificate, key, lambda: "")


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    while ends:
        for end in tuple(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
