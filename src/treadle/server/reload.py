"""Reads the keys and the certificate again when told to by SIGHUP, so that neither needs a restart.

Leaves to others: what is in them (``server.keys``, ``server.tls``).
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING

from treadle.errors import UsageError
from treadle.server.keys import read_keys
from treadle.server.tls import certificate_fault, renew_certificate

if TYPE_CHECKING:
    from treadle.server.keys import Keyring
    from treadle.server.settings import ServerSettings

__all__ = ["Reload"]

_log = logging.getLogger("treadle.server")


class Reload:
    """What SIGHUP does; files that do not fit change nothing, and the log says why.

    Args:
        settings: Where the files are.
        keys: The keys to replace.
        context: What new TLS connections begin with, None without TLS.
    """

    def __init__(self, settings: ServerSettings, keys: Keyring, context: ssl.SSLContext | None) -> None:
        self._settings = settings
        self._keys = keys
        self._context = context

    @property
    def has_files(self) -> bool:
        """Tell whether there is anything to read again."""
        return self._settings.api_key_file is not None or self._context is not None

    def __call__(self) -> None:
        """Read the files again."""
        if self._settings.api_key_file is not None:
            self._read_keys()
        if self._context is not None:
            self._renew_certificate(self._context)

    def _read_keys(self) -> None:
        try:
            keys = read_keys(self._settings.api_key_file)
        except UsageError as error:
            _log.error("the API keys stay as they were: %s", error)
            return
        self._keys.replace(keys)
        _log.info("API keys were read again: there are %d", len(keys))

    def _renew_certificate(self, context: ssl.SSLContext) -> None:
        certificate, key = self._settings.tls_certificate, self._settings.tls_key
        assert certificate is not None
        assert key is not None
        try:
            renew_certificate(context, certificate, key)
        except UsageError as error:
            _log.error("the certificate stays as it was: %s", error)
            return
        fault = certificate_fault(certificate, key)
        _log.log(
            logging.INFO if fault is None else logging.WARNING,
            "the certificate %s was read again%s",
            certificate,
            "" if fault is None else f"; clients that check it will refuse it: {fault}",
        )
