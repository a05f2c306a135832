"""Asks a running devhost for its status."""

import http.client
import json
from collections.abc import Sequence
from typing import Any, Final

from devhost.observe.address import Address

_PATIENCE_S: Final = 10.0

StatusJson = dict[str, Any]


class NotRunningError(Exception):
    """No devhost answers at an address."""


def request(address: Address) -> StatusJson:
    """Return the status of the devhost at an address.

    Raises:
        NotRunningError: There is no answer, or it is not devhost's.
    """
    near = address.near
    connection = http.client.HTTPConnection(near.host, near.port, timeout=_PATIENCE_S)
    try:
        # Whatever name leads there: it is not a browser that asks.
        connection.request("GET", "/status", headers={"Host": "localhost"})
        answer = connection.getresponse()
        shown: StatusJson = json.loads(answer.read())
        known = answer.status == http.HTTPStatus.OK and "resources" in shown
    except OSError as error:
        raise _not_running(near, error.strerror or str(error)) from None
    except (http.client.HTTPException, ValueError, TypeError):
        known = False
    finally:
        connection.close()
    if not known:
        raise _not_running(near, "the response is not from devhost")
    return shown


def of_resources(status: StatusJson, names: Sequence[str]) -> StatusJson:
    """Return a status without other resources and their problems; all of it without names."""
    if not names:
        return status
    others = tuple(f"{one['name']}: " for one in status["resources"] if one["name"] not in names)
    return status | {
        "troubles": [one for one in status["troubles"] if not one.startswith(others)],
        "resources": [one for one in status["resources"] if one["name"] in names],
    }


def _not_running(address: Address, reason: str) -> NotRunningError:
    return NotRunningError(
        f"cannot reach devhost at {address}: {reason} (is it running with --status-listen?)"
    )
