"""Whether this process runs a command that was typed on another machine, and the data sent with it.

A separate module without imports, because shell completion waits for `config.places` at each Tab.
"""

TYPE_CHECKING = False  # like typing's
if TYPE_CHECKING:
    from clusterctl.launcher.config.sent import ClientData

_client_data: "ClientData | None" = None


def set_client_data(data: "ClientData") -> None:
    """Make this process run a command that was typed on another machine."""
    global _client_data
    _client_data = data


def client_data() -> "ClientData | None":
    """The data sent with the command; None if it was typed on this machine."""
    return _client_data
