"""Lock files -> the exact packages of one environment: uv.lock, pylock.toml (PEP 751), and pinned requirements.

All three become the same list of pins, which pip and uv install alike: without resolving, and without the project
itself, whose code travels with the run. What would run code here, or is not the same everywhere, is refused by name.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.source import shown_path
from clusterctl.shared.errors import ConfigError, reason
from clusterctl.shared.record.files import exists, read_beginning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from importlib.metadata import Distribution
    from pathlib import Path

LARGEST_BYTES = 32 * 2**20  # the lock of a large workspace has a few
_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]*@")  # up to the last @ before the path: a password may have one
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[A-Za-z0-9][A-Za-z0-9.!+_-]*"
_EXTRAS = r"\s*(?:\[([^\]]*)\])?\s*"
_PINNED = re.compile(rf"({_NAME}){_EXTRAS}===?\s*({_VERSION})")
_DIRECT = re.compile(rf"({_NAME}){_EXTRAS}@\s*(\S+)")
_NEEDED = re.compile(rf"({_NAME}){_EXTRAS}")  # at the beginning of a requirement
_HASH = re.compile(r"--hash[=\s]\s*([a-z0-9]+:[0-9a-f]+)")
_HASH_TEXT = re.compile(r"[a-z0-9]+:[0-9a-f]+")
_WHEEL_URL = re.compile(r"https?://[^\s\"'\\]+\.whl(?:#[^\s\"'\\]*)?")
_INDEX_OPTION = re.compile(r"(-i|--index-url|--extra-index-url|-f|--find-links)[=\s]\s*(\S+)")
_URL = re.compile(r"(?:https?|file)://[^\s\"'\\]+")
# Other files that name packages, and how to get a lock or an environment from them.
_OTHERS = {
    r"environment\.ya?ml|conda-lock\.yml|pixi\.(?:lock|toml)": (
        "a conda file",
        "create the environment with conda, and activate it: setup = ['source /path/to/conda/bin/activate NAME']",
    ),
    r"poetry\.lock": ("Poetry's lock", "poetry export --output requirements.txt"),
    r"Pipfile(?:\.lock)?": ("Pipenv's lock", "pipenv requirements --hash > requirements.txt"),
    r"pdm\.lock": ("PDM's lock", "pdm export --format pylock --output pylock.toml"),
    r"pyproject\.toml|setup\.(?:py|cfg)": ("no lock", "lock its versions first: uv lock"),
}
_MOST_NAMED = 5  # packages, in a message
_OUTDATED = "is it up to date? uv lock"


class Pin(NamedTuple):
    """One package to install, exactly."""

    name: str  # normalized
    version: str  # empty if `url` has it
    hashes: tuple[str, ...] = ()  # such as "sha256:...", of all its files
    url: str = ""  # of a wheel
    has_wheel: bool = True  # as far as the lock shows
    extras: tuple[str, ...] = ()  # of requirements, normalized; a lock has their packages already

    @property
    def line(self) -> str:
        """The package as in a requirements file."""
        what = f"{self.name} @ {self.url}" if self.url else f"{self.name}=={self.version}"
        return " \\\n    ".join([what, *(f"--hash={one}" for one in self.hashes)])


@dataclass(frozen=True)
class Pins:
    """What a lock file asks for on one Python and platform. `left_out` names its parts that are not installed."""

    file: str  # its name
    packages: tuple[Pin, ...]
    index: str = ""  # of most packages, for installers that have not been given another one: a site may have a mirror
    options: tuple[str, ...] = ()  # lines for the installer, such as "--extra-index-url URL"; may contain credentials
    complete: bool = True  # whether a resolver made it; requirements may lack what their packages need
    left_out: tuple[str, ...] = ()

    @property
    def requirements(self) -> str:
        """A requirements file. It may contain the credentials of an index."""
        return "\n".join([*self.options, *(one.line for one in self.packages), ""])

    def offline(self, wheels: Path) -> str:
        """The same for a folder that has all the wheels: nothing else is looked at."""

        def local(url: str) -> str:
            return (wheels / url.partition("#")[0].rpartition("/")[2]).as_uri() if url else ""

        return "\n".join([*(one._replace(url=local(one.url)).line for one in self.packages), ""])


def without_credentials(text: str) -> str:
    """`text` with user names and passwords removed from its URLs."""
    return _CREDENTIALS.sub("", text)


def lock_text(path: Path) -> str:
    """The content of a lock file, from here or from the user's machine. Raises ConfigError."""
    shown = shown_path(path)
    for names, (what, hint) in _OTHERS.items():
        if re.fullmatch(names, path.name):
            wanted = "wanted: uv.lock, pylock.toml, or requirements.txt with every version pinned"
            raise ConfigError(f"environment: {path.name} is {what}; {wanted}", hint)
    if client := client_data():
        if (sent := client.text(path)) is None:
            raise ConfigError(
                f"environment: not sent with the job: {path}",
                "submit the job again from that machine, with the file in the job file",
            )
        return sent
    try:
        content = read_beginning(path, LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise ConfigError(f"environment: {shown}: larger than {LARGEST_BYTES >> 20} MiB", "is it a lock file?")
        return content.decode("utf-8-sig")  # as pip does: editors on Windows begin a text with a mark
    except OSError as error:
        raise ConfigError(f"environment: cannot read {shown}: {reason(error)}", f"see: ls -l {shown}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"environment: {shown}: not UTF-8 text", "is it a lock file?") from error


def read_pins(name: str, text: str, markers: Mapping[str, str]) -> Pins:
    """The packages of the lock file `name` for the Python and platform that `markers` describe (PEP 508).

    Raises ConfigError with all packages that cannot be installed everywhere alike.
    """
    if name == "uv.lock":
        return _of_uv(name, _parsed(name, text), markers)
    if re.fullmatch(r"pylock(\.[^.]+)?\.toml", name):
        return _of_pylock(name, _parsed(name, text), markers)
    if name.endswith((".txt", ".in")):
        return _of_requirements(name, text, markers)
    hint = "uv.lock, pylock.toml, or requirements.txt with every version pinned"
    raise ConfigError(f"environment: neither a lock nor requirements: {name}", hint)


def require_wheels(pins: Pins) -> None:
    """Raise ConfigError if a package has no wheel: building it would run its code on this machine."""
    if lacking := [f"{one.name} {one.version}" for one in pins.packages if not one.has_wheel]:
        message = f"environment: only source, no wheel, in {pins.file}: {_few(lacking)}; building runs their code"
        raise ConfigError(message, "to build them on the login node nevertheless: `environment_builds = true`")


def require_extras(pins: Pins, installed: Iterable[Distribution], markers: Mapping[str, str]) -> None:
    """Raise ConfigError if `pins` names an extra but not the packages that it needs, which pip and uv do not check.

    `installed` are the packages as they were installed, for the Python that `markers` describe.
    """
    known = {_normal(one.name): one for one in installed}
    waiting = [(one.name, extra) for one in pins.packages for extra in one.extras if one.name in known]
    seen, lacking = set(waiting), set()
    while waiting:
        name, extra = waiting.pop()
        spellings = [one for one in known[name].metadata.get_all("Provides-Extra") or () if _normal(one) == extra]
        for need in known[name].requires or ():
            what, _, marker = need.partition(";")
            found = _NEEDED.match(what.strip())
            if not found or not any(_applies(marker, {**markers, "extra": one}) for one in spellings):
                continue
            needed = _normal(found[1])
            if needed not in known:
                lacking.add(f"{needed} (for {name}[{extra}])")
                continue
            more = {(needed, one) for one in _extras(found[2])} - seen
            seen |= more
            waiting += more
    if lacking:
        message = f"environment: {pins.file} lacks {_few(sorted(lacking))}"
        raise ConfigError(message, f"uv pip compile requirements.in --output-file {pins.file}")


def _applies(marker: str, markers: Mapping[str, str]) -> bool:
    """Whether a marker in an installed package is true; what pip could read, but this cannot, counts as not."""
    with suppress(ConfigError):
        return is_true(marker.strip(), markers)
    return False


def _extras(text: str | None) -> tuple[str, ...]:
    """The extras in the brackets after a package's name."""
    return tuple(sorted({_normal(one.strip()) for one in (text or "").split(",") if one.strip()}))


def _parsed(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"environment: {name}: not valid TOML: {error}", "create it again: uv lock") from error


def _of_uv(name: str, lock: dict[str, Any], markers: Mapping[str, str]) -> Pins:
    """Follow the dependencies from the project, as `uv sync --no-dev --no-install-project` does."""
    if lock.get("version") != 1:
        raise ConfigError(f"environment: {name}: format {lock.get('version')!r}, not 1", _PYLOCK_HINT)
    _require_python(name, lock.get("requires-python"), markers)
    packages: dict[str, list[dict[str, Any]]] = {}
    for one in _tables(lock.get("package")):
        packages.setdefault(_normal(one.get("name", "")), []).append(one)
    roots = [one for found in packages.values() for one in found if _is_root(one)]
    if len(roots) != 1:
        raise ConfigError(f"environment: {name}: has no project of its own, only members", _PYLOCK_HINT)
    left_out = [f"extra {extra}" for extra in roots[0].get("optional-dependencies", {})]
    left_out += [f"group {group}" for group in roots[0].get("dev-dependencies", {})]
    waiting: list[tuple[dict[str, Any], str]] = [(roots[0], "")]
    seen: set[tuple[int, str]] = set()
    chosen: dict[int, dict[str, Any]] = {}
    while waiting:
        package, extra = waiting.pop()
        if (id(package), extra) in seen:
            continue
        seen.add((id(package), extra))
        chosen[id(package)] = package
        needs = package.get("optional-dependencies", {}).get(extra) if extra else package.get("dependencies")
        for need in _tables(needs):
            if not is_true(need.get("marker", ""), markers, name):
                continue
            target = _meant(name, need, packages.get(_normal(need.get("name", "")), []))
            waiting += [(target, one) for one in ("", *need.get("extra", ()))]
    problems, pins, indexes = [], [], []
    for one in chosen.values():
        if one is roots[0]:
            continue
        source = one.get("source", {})
        kind = next(iter(source), "")
        if kind == "registry" and _URL.match(str(source[kind])):
            indexes.append(source[kind])
            pins.append(_pin(name, one, [str(file.get("hash", "")) for file in _files(one)]))
        elif kind == "url" and _WHEEL_URL.fullmatch(str(source[kind])):
            hashes = [str(file.get("hash", "")) for file in _files(one)]
            pins.append(_pin(name, one, hashes)._replace(url=source[kind]))
        else:
            problems.append(f"{one.get('name')} ({'folder' if kind in _FOLDERS else kind or 'unknown'})")
    return _from_indexes(name, pins, indexes, problems, left_out)


_FOLDERS = ("directory", "editable", "virtual", "path")
_PYLOCK_HINT = "export what you need: uv export --no-emit-project --format pylock.toml --output-file pylock.toml"


def _is_root(package: dict[str, Any]) -> bool:
    source = package.get("source", {})
    return "." in (source.get("virtual"), source.get("editable"))


def _meant(name: str, need: dict[str, Any], packages: list[dict[str, Any]]) -> dict[str, Any]:
    """The package that a dependency in uv.lock names; its version and source are given where there are several."""
    found = [
        one
        for one in packages
        if need.get("version") in (None, one.get("version")) and need.get("source") in (None, one.get("source"))
    ]
    if len(found) != 1:
        raise ConfigError(f"environment: {name}: damaged: {len(found)} packages named {need.get('name')!r}", _OUTDATED)
    return found[0]


def _of_pylock(name: str, lock: dict[str, Any], markers: Mapping[str, str]) -> Pins:
    if not str(lock.get("lock-version", "")).startswith("1."):
        raise ConfigError(f"environment: {name}: lock-version {lock.get('lock-version')!r}, not 1.x", _PYLOCK_HINT)
    _require_python(name, lock.get("requires-python"), markers)
    supported = [one for one in lock.get("environments", ()) if isinstance(one, str)]
    if supported and not any(is_true(one, markers, name) for one in supported):
        message = f"environment: {name} is for other machines: {'; '.join(supported)}"
        raise ConfigError(message, "lock it for this one as well")
    groups = [str(one) for one in lock.get("default-groups", ())]
    left_out = [f"extra {one}" for one in lock.get("extras", ())]
    left_out += [f"group {one}" for one in lock.get("dependency-groups", ()) if one not in groups]
    problems, pins, indexes = [], [], []
    for one in _tables(lock.get("packages")):
        if not is_true(one.get("marker", ""), markers, name, groups):
            continue
        if other := next((kind for kind in ("vcs", "directory", "archive") if kind in one), None):
            url = str(one["archive"].get("url", "")) if other == "archive" else ""
            if not _WHEEL_URL.fullmatch(url):
                problems.append(f"{one.get('name')} ({'git' if other == 'vcs' else url or 'folder'})")
                continue
            pins.append(_pin(name, one, _hashes(one["archive"]))._replace(url=url, has_wheel=True))
            continue
        files = _files(one)
        if any("path" in file for file in files):
            problems.append(f"{one.get('name')} (path)")
            continue
        index = str(one.get("index", ""))
        indexes += [index] if _URL.fullmatch(index) else []
        pins.append(_pin(name, one, [text for file in files for text in _hashes(file)]))
    return _from_indexes(name, pins, indexes, problems, left_out)


def _hashes(file: dict[str, Any]) -> list[str]:
    return [f"{kind}:{digest}" for kind, digest in file.get("hashes", {}).items()]


def _files(package: dict[str, Any]) -> list[dict[str, Any]]:
    """The files of a package in a lock: wheels, and the source."""
    return [*_tables(package.get("wheels")), *_tables([package["sdist"]] if "sdist" in package else ())]


def _tables(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list | tuple) else []


def _pin(name: str, package: dict[str, Any], hashes: Iterable[str]) -> Pin:
    """A package of a lock. Raises ConfigError for a name or version that is none."""
    called, version = str(package.get("name", "")), str(package.get("version", ""))
    found = tuple(sorted({one for one in hashes if one}))
    wrong = not re.fullmatch(_NAME, called) or (version and not re.fullmatch(_VERSION, version))
    if wrong or not all(map(_HASH_TEXT.fullmatch, found)):
        raise ConfigError(f"environment: {name}: damaged: {called!r} {version!r}", _OUTDATED)
    return Pin(_normal(called), version, found, has_wheel=bool(_tables(package.get("wheels"))))


def _of_requirements(name: str, text: str, markers: Mapping[str, str]) -> Pins:
    """The lines of a requirements file, each of which must name one version."""
    problems, pins, options = [], [], []
    for number, line in _lines(text):
        if found := _INDEX_OPTION.fullmatch(line):
            option = {"-i": "--index-url", "-f": "--find-links"}.get(found[1], found[1])
            if _URL.fullmatch(found[2]):
                options.append(f"{option} {found[2]}")
            else:
                problems.append(f"line {number}: not a URL: {found[2]}")
            continue
        if line.startswith("-"):
            what = {"-e": "editable", "--editable": "editable", "-r": "another file", "-c": "another file"}
            problems.append(f"line {number}: {what.get(line.split()[0], 'option')}: {line}")
            continue
        hashes = tuple(sorted(_HASH.findall(line)))
        wanted, _, marker = _HASH.sub("", line).partition(";")
        if not is_true(marker.strip(), markers, name):
            continue
        if found := _PINNED.fullmatch(wanted.strip()):
            pins.append(Pin(_normal(found[1]), found[3], hashes, extras=_extras(found[2])))
        elif (found := _DIRECT.fullmatch(wanted.strip())) and _WHEEL_URL.fullmatch(found[3]):
            pins.append(Pin(_normal(found[1]), "", hashes, found[3], extras=_extras(found[2])))
        else:
            kind = "git" if "git+" in wanted else "path or URL" if re.search(r"[/@]", wanted) else "no exact version"
            problems.append(f"line {number}: {kind}: {wanted.strip()}")
    if problems:
        message = without_credentials(f"environment: {name}: {_few(problems)}")
        raise ConfigError(
            message, "pin everything in one file: uv pip compile requirements.in --output-file requirements.txt"
        )
    return replace(_pins(name, pins, "", options), complete=False)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that ask for something, with their numbers; continued ones joined, without comments."""
    begun, whole = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        content = re.sub(r"(^|\s)#.*", "", line).strip()
        begun = begun or number
        if content.endswith("\\"):
            whole += content[:-1].rstrip() + " "
            continue
        if whole := (whole + content).strip():
            yield begun, whole
        begun, whole = 0, ""
    if whole.strip():
        yield begun, whole.strip()


def _pins(name: str, pins: Sequence[Pin], index: str, options: Sequence[str], left_out: Sequence[str] = ()) -> Pins:
    by_name: dict[str, Pin] = {}
    for one in pins:
        if by_name.setdefault(one.name, one) != one:
            raise ConfigError(f"environment: {name}: two versions of {one.name}", _OUTDATED)
    if not by_name:
        raise ConfigError(f"environment: {name}: names no packages", "remove the key `environment` to use none")
    return Pins(name, tuple(sorted(by_name.values())), index, tuple(options), left_out=tuple(left_out))


def _from_indexes(
    name: str, pins: Sequence[Pin], indexes: Sequence[str], problems: Sequence[str], left_out: Sequence[str]
) -> Pins:
    """The pins of a lock; most come from the first of its indexes. `problems` are its packages from anywhere else."""
    if problems:
        message = without_credentials(f"environment: not from a package index, in {name}: {_few(problems)}")
        hint = (
            "put your own modules into the job's folder (`code` copies it), and others into an index or a wheel's URL"
        )
        raise ConfigError(message, hint)
    first, *others = [index for index, _ in Counter(indexes).most_common()] or [""]
    return _pins(name, pins, first, [f"--extra-index-url {one}" for one in others], left_out)


def _few(found: Sequence[str]) -> str:
    more = len(found) - _MOST_NAMED
    return ", ".join(found[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _require_python(name: str, wanted: object, markers: Mapping[str, str]) -> None:
    python = markers.get("python_full_version", "")
    specifiers = [one.strip() for one in str(wanted or "").split(",") if one.strip()]
    for one in specifiers:
        found = re.fullmatch(r"(~=|==|!=|<=|>=|<|>|===)\s*(\S+)", one)
        if not found or not _compared(python, found[1], found[2]):
            message = f"environment: {name} needs Python {wanted}, and the tasks have {python}"
            raise ConfigError(message, "name another interpreter with `python` in the cluster file, or lock it again")


def _normal(name: str) -> str:
    """The name of a package, normalized (PEP 503)."""
    return re.sub(r"[-_.]+", "-", str(name)).lower()


# Environment markers (PEP 508, and the lists of PEP 751), evaluated for the Python that will run the tasks. pip and uv
# have their own evaluators, but no interface to them, and submitting needs only the standard library.

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'[^']*'|"[^"]*")|(?P<op>===|~=|==|!=|<=|>=|<|>|\(|\))|(?P<word>[A-Za-z_][\w.]*))"""
)
_LISTS = ("extras", "dependency_groups")
_OLD_NAMES = {
    "os.name": "os_name",
    "sys.platform": "sys_platform",
    "platform.machine": "platform_machine",
    "platform.version": "platform_version",
    "platform.python_implementation": "platform_python_implementation",
    "python_implementation": "platform_python_implementation",
}


def is_true(marker: str, markers: Mapping[str, str], file: str = "", groups: Sequence[str] = ()) -> bool:
    """Whether `marker` is true there, with at most the extra in `markers`. Raises ConfigError if it cannot be read."""
    if not marker:
        return True
    try:
        tokens = [*_tokens(marker)]
        value = _any(tokens, markers, groups)
        if tokens:
            raise ValueError(tokens[0])
        return value
    except (ValueError, IndexError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"environment: {file}: cannot read the marker {marker!r}", _OUTDATED) from error


def _tokens(text: str) -> Iterator[str]:
    place, text = 0, text.rstrip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if not found:
            raise ValueError(text[place:])
        yield found[0].strip()
        place = found.end()


def _any(tokens: list[str], markers: Mapping[str, str], groups: Sequence[str]) -> bool:
    value = _all(tokens, markers, groups)
    while tokens[:1] == ["or"]:
        del tokens[0]
        value = _all(tokens, markers, groups) or value
    return value


def _all(tokens: list[str], markers: Mapping[str, str], groups: Sequence[str]) -> bool:
    value = _one(tokens, markers, groups)
    while tokens[:1] == ["and"]:
        del tokens[0]
        value = _one(tokens, markers, groups) and value
    return value


def _one(tokens: list[str], markers: Mapping[str, str], groups: Sequence[str]) -> bool:
    first = tokens.pop(0)
    if first == "(":
        value = _any(tokens, markers, groups)
        if tokens.pop(0) != ")":
            raise ValueError(first)
        return value
    operator = tokens.pop(0)
    if negated := operator == "not":
        operator = tokens.pop(0)
    second = tokens.pop(0)
    left = _text(first, markers)
    if operator == "in":
        chosen = groups if second == "dependency_groups" else ()
        return (left in (chosen if second in _LISTS else _text(second, markers))) is not negated
    if negated:
        raise ValueError(operator)
    return _compared(left, operator, _text(second, markers))


def _text(token: str, markers: Mapping[str, str]) -> str:
    if token[0] in "'\"":
        return token[1:-1]
    return markers.get("extra", "") if token == "extra" else markers[_OLD_NAMES.get(token, token)]


def _compared(left: str, operator: str, right: str) -> bool:
    """A comparison of versions if both sides are such, else of texts (PEP 440, without local versions and epochs)."""
    prefix = right.removesuffix(".*")
    first, second = _release(left), _release(prefix)
    if operator == "===" or first is None or second is None:
        if operator in ("==", "===", "!="):
            return (left == right) is (operator != "!=")
        return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator]
    if prefix != right or operator == "~=":
        numbers = second[0] if prefix != right else second[0][:-1]
        alike = first[0][: len(numbers)] == numbers
        return alike is (operator != "!=") and (operator != "~=" or _key(first) >= _key(second))
    one, other = _key(first), _key(second)
    return {
        "==": one == other,
        "!=": one != other,
        "<": one < other,
        "<=": one <= other,
        ">": one > other,
        ">=": one >= other,
    }[operator]


def _release(text: str) -> tuple[tuple[int, ...], tuple[str, int]] | None:
    """The numbers of a version, and its pre-release, which sorts before the release."""
    found = re.fullmatch(r"v?(\d+(?:\.\d+)*)(?:(a|b|rc)(\d+))?\+?", text.strip())
    if not found:
        return None
    return tuple(map(int, found[1].split("."))), (found[2] or "z", int(found[3] or 0))


def _key(release: tuple[tuple[int, ...], tuple[str, int]]) -> tuple[tuple[int, ...], tuple[str, int]]:
    numbers, before = release
    return (*numbers, *(0,) * (8 - len(numbers))), before


def older_than_project(path: Path, text: str) -> list[str]:
    """The packages that pyproject.toml beside a uv.lock asks for, but not the lock: somebody forgot `uv lock`."""
    if path.name != "uv.lock" or client_data() or not exists(project := path.with_name("pyproject.toml")):
        return []
    try:
        wanted = tomllib.loads(read_beginning(project, LARGEST_BYTES).decode())["project"].get("dependencies", [])
        root = next(filter(_is_root, _tables(tomllib.loads(text).get("package"))), {})
        locked = {_normal(one.get("name", "")) for one in _tables(root.get("dependencies"))}
        locked |= {_normal(one.get("name", "")) for one in _tables(root.get("metadata", {}).get("requires-dist"))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    names = (re.match(_NAME, str(one).strip()) for one in wanted)
    return [found[0] for found in names if found and _normal(found[0]) not in locked]
