"""What the routes of one server share.

Leaves to others: making it (``server.app``).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import cast

from fastapi import Request

from treadle.server.hub import ModelHub
from treadle.server.keys import Keyring
from treadle.server.limits import Limits
from treadle.server.machine_watch import MachineWatch
from treadle.server.metrics import Metrics
from treadle.server.response_store import ResponseStore
from treadle.server.settings import ServerSettings

__all__ = ["ServerState", "state_of"]


@dataclass(frozen=True)
class ServerState:
    """The models, settings, keys and stored responses of one server, what runs in it, what it has done and where.

    ``tls`` is what connections are secured with, None if they are not.
    """

    hub: ModelHub
    settings: ServerSettings
    keys: Keyring
    responses: ResponseStore
    limits: Limits
    metrics: Metrics
    machine: MachineWatch
    tls: ssl.SSLContext | None


def state_of(request: Request) -> ServerState:
    """Return the state of the server that received ``request``."""
    return cast(ServerState, request.app.state.server)
