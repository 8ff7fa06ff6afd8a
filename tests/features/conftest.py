"""Fail tests that reach the network."""

import socket
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def blocked_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection but those within the machine."""

    def refuse(self: socket.socket, address: Any) -> None:
        raise OSError(f"the network is blocked in these tests; something connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
