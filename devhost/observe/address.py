"""The address of the HTTP server: ``HOST:PORT``, ``:PORT`` (all addresses) or ``[::1]:PORT``."""

import re
import socket
from dataclasses import dataclass
from typing import Final

_FORM: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:\[\]]*)):(?P<port>[0-9]{1,10})"
)
_PORT_MAX: Final = 65535
_BACKLOG: Final = 64


@dataclass(frozen=True, slots=True)
class Address:
    """A host (empty: all addresses of this machine) and a port (0: any free port)."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Return the address in a text; raise a `ValueError` that says what would be right."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not HOST:PORT, :PORT or [ADDRESS]:PORT")
        if (port := int(match["port"])) > _PORT_MAX:
            raise ValueError(f"{text!r}: the port should be at most {_PORT_MAX}")
        return cls(match["six"] or match["host"] or "", port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def local(self) -> "Address":
        """The address to connect to from the same machine."""
        loopback = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (not bound)
        return Address(loopback.get(self.host, self.host), self.port)

    def bind(self) -> socket.socket:
        """Return a listening socket, or raise `OSError`."""
        if not self.host and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", self.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        return socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
