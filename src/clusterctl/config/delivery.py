"""Whether this process works for a command that was typed on another machine, and what came with it.

A module of its own without imports: a shell waits for `config.places` at each Tab.
"""

TYPE_CHECKING = False  # as in typing
if TYPE_CHECKING:
    from clusterctl.config.sent import Arrival

_delivery: "Arrival | None" = None


def deliver(delivery: "Arrival") -> None:
    """From now on this process works for the command that was typed elsewhere."""
    global _delivery
    _delivery = delivery


def delivered() -> "Arrival | None":
    """What came with the command; None where it was typed on this machine."""
    return _delivery
