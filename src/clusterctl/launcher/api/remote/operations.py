"""Runs operations on another machine if the cluster file names one, and returns their results here.

The request is a command line like any other (`OPERATION`), which prints the encoded result or exception.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from clusterctl.launcher.config.client_data import client_data as client_data
from clusterctl.launcher.config.shown import ProgressListener
from clusterctl.launcher.config.suggestions import called_cluster, name_cluster
from clusterctl.shared.errors import ClusterctlError, HostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.launcher.api.remote.cluster import RemoteCluster
    from clusterctl.launcher.api.remote.request import Payload

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
OPERATION = "operation"  # the command, of which only the program on the other machine knows
_PREFIX = "clusterctl.launcher.api."
_READING = "Reading"  # its lines are sent: it also reads files, which stay there
_KNOWN: dict[str, Callable[..., Any]] = {}


def operation(
    *,
    changes: bool = False,
    waits: bool = False,
    takes_job: bool = False,
    restarts: bool = False,
    choose: Callable[[Mapping[str, Any]], str] | None = None,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorates an operation to be called on the machine of its `cluster`, or of the run it is a method of or gets.

    An operation that `changes` something is executed only once, even if the connection breaks; one that `waits` keeps
    waiting. With `takes_job` the job file and code of its first argument are sent along; one that `restarts` a run may
    get its secret variables. With `choose`, `cluster` may name several, "a,b": it gets the arguments and returns one.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        here, code = suggesting(function), function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        name = f"{function.__module__.removeprefix(_PREFIX)}:{function.__qualname__}"

        @functools.wraps(function)
        def called(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            given: dict[str, Any] = {**dict(zip(names, arguments, strict=False)), **named}
            if choose and "," in str(given.get("cluster") or ""):
                again: Callable[..., Result] = called
                return again(**{**given, "cluster": choose(given)})
            place = None if client_data() else _place(given, has_cluster="cluster" in names)
            if place is None:
                return here(*arguments, **named)
            from clusterctl.launcher.api.remote.request import payload_of_restart

            payload = _payload(place, given) if takes_job else payload_of_restart(place.cluster) if restarts else None
            repeat = "once" if changes else "redrawn" if waits else "whole"
            result: Result = understood(place, name, ask(place, name, given, payload, repeat=repeat))
            return result

        _KNOWN[name] = function
        return called

    return decorate


def suggesting(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a function of the Python API: what it suggests to type names its `cluster`, or that of its run."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @functools.wraps(function)
    def called(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        given: dict[str, Any] = {**dict(zip(names, arguments, strict=False)), **named}
        found = (*(getattr(given.get(name), "_called", None) for name in ("self", "run")), given.get("cluster"))
        with called_cluster(next((one for one in found if isinstance(one, str) and "," not in one), None)):
            return function(*arguments, **named)

    return called


def carried_out(name: str, arguments: str) -> str:
    """Call the operation for another machine; returns its encoded result or exception."""
    from clusterctl.launcher.api.logs import Lines, Reading
    from clusterctl.launcher.remote.values import decoded, encoded, parsed, resolved

    try:
        function = _operation(name)
        types, given = _annotations(function), parsed(arguments)
        if not isinstance(given, dict) or given.keys() - types.keys():
            raise _another_version(name)
        hints = {key: resolved(types[key], function.__module__) for key in given}
        result: Any = function(**{key: decoded(value, hints[key]) for key, value in given.items()})
        answer = {"returned": encoded(Lines(result) if isinstance(result, Reading) else result)}
    except ClusterctlError as error:
        name_cluster(error)
        answer = {"raised": encoded(error)}
    except ImportError as error:
        answer = {"raised": encoded(_another_version(f"{name}: {error}"))}
    return json.dumps(answer)


def _operation(name: str) -> Callable[..., Any]:
    importlib.import_module(_PREFIX + name.partition(":")[0])
    if name not in _KNOWN:
        raise _another_version(name)
    return _KNOWN[name]


def _another_version(name: str) -> UsageError:
    return UsageError(f"no such operation: {name}", "do both machines have the same version of clusterctl?")


def _place(given: Mapping[str, Any], *, has_cluster: bool) -> RemoteCluster | None:
    """Where to call the operation: where its run is, else on the cluster given."""
    for value in (given.get("self"), given.get("run")):
        if value is not None and not isinstance(value, str):
            place: RemoteCluster | None = value.place
            return place
    if not has_cluster:
        return None
    from clusterctl.launcher.api.remote.cluster import remote_cluster

    return remote_cluster(given.get("cluster"))


def ask(
    place: RemoteCluster,
    name: str,
    given: Mapping[str, Any],
    payload: Payload | None = None,
    *,
    repeat: str = "whole",
    person: bool = True,
) -> str:
    """Call the operation on the machine of `place`; returns its answer, for `understood`. Raises HostError.

    With `person`, ssh may prompt for a password.
    """
    from clusterctl.launcher.api.remote.request import (
        Answer,
        Callbacks,
        Conversation,
        Payload,
        Printed,
        Repeat,
        request,
    )
    from clusterctl.launcher.remote.values import encoded

    payload = payload or Payload()
    arguments = json.dumps({key: encoded(_sendable(value)) for key, value in given.items() if key != "progress"})
    asked = request(place, (OPERATION, name, arguments), payload, once=repeat == "once")
    answer, errors = Answer(), Printed()
    callbacks = Callbacks(answer.take, errors.take, answer.forget, payload.answer, ask=person)
    code = Conversation(place.host, place.cluster.remote_python, asked, callbacks, Repeat(repeat)).result()
    if code:
        last = errors.text.strip().rpartition("\n")[2]
        raise HostError(f"clusterctl on {place.host} failed with exit code {code}: {last}", "run the command again")
    return answer.content.decode(errors="replace")


def understood(place: RemoteCluster, name: str, answer: str) -> Any:
    """The result of the operation `name`. Raises its exception, or HostError if it is not of the operation's type."""
    from clusterctl.launcher.remote.values import decoded, parsed

    content = parsed(answer)
    if not isinstance(content, dict) or len(content.keys() & {"raised", "returned"}) != 1:
        raise HostError(f"clusterctl on {place.host} sent an invalid answer", "run the command again")

    def adopt(value: Any) -> Any:
        """A run or a sweep is on the other machine."""
        return replace(value, place=place) if _has_place(value) else value

    if "raised" in content:
        raise decoded(content["raised"], ClusterctlError, adopt)
    return decoded(content["returned"], expected(name), adopt)


def expected(name: str) -> Any:
    """The type of the answer to the operation `name`."""
    from clusterctl.launcher.remote.values import resolved

    function = inspect.unwrap(_operation(name))
    returned = _annotations(function)["return"]
    if returned == _READING:
        return resolved("Lines", f"{_PREFIX}logs")
    return resolved(returned, function.__module__)


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters and the result; `self` is of the class that the method is defined in."""
    cls, dot, _ = function.__qualname__.rpartition(".")
    return {**({"self": cls} if dot else {}), **inspect.get_annotations(function)}


def _has_place(value: Any) -> bool:
    """Whether it is a `Run` or a `Sweep`, which are above this module."""
    return "place" in getattr(value, "__dataclass_fields__", ())


def _sendable(value: Any) -> Any:
    if _has_place(value):
        return replace(value, place=None)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [_sendable(item) for item in value]
    return value


def _payload(place: RemoteCluster, given: Mapping[str, Any]) -> Payload:
    from clusterctl.launcher.api.remote.request import load_payload
    from clusterctl.launcher.api.settings import program_words, settings

    progress = given.get("progress")
    job = given.get("job")
    program: Sequence[str | os.PathLike[str]] = given.get("program", ())
    return load_payload(
        place.cluster,
        None if job is None else os.fspath(job),
        stage=given.get("stage"),
        program=program_words(program),
        overrides=settings(given.get("overrides", ())),
        large_code=bool(given.get("large_code")),
        progress=progress if isinstance(progress, ProgressListener) else ProgressListener(),
    )
