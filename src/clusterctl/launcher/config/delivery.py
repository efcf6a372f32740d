"""Whether this process runs a command that was typed on another machine, and the data sent with it.

A separate module without imports, because shell completion waits for `config.places` at each Tab.
"""

TYPE_CHECKING = False  # like typing's
if TYPE_CHECKING:
    from clusterctl.launcher.config.sent import Arrival

_delivery: "Arrival | None" = None


def deliver(delivery: "Arrival") -> None:
    """Make this process run a command that was typed on another machine."""
    global _delivery
    _delivery = delivery


def delivered() -> "Arrival | None":
    """The data sent with the command; None if it was typed on this machine."""
    return _delivery
