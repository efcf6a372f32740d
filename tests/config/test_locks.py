"""Lock files: the packages that they name on one Python, and what is refused by name."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.environments import make_wheel, pylock, requirements, uv_lock

from clusterctl.launcher.config.environment import environment_of
from clusterctl.launcher.config.locks import (
    Pins,
    is_true,
    lock_text,
    older_than_project,
    read_pins,
    require_extras,
    require_wheels,
    without_credentials,
)
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.spec import Cluster, Job

HERE = {
    "implementation_name": "cpython",
    "implementation_version": "3.11.7",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_release": "6.1.0-18-amd64",
    "platform_system": "Linux",
    "platform_version": "#1 SMP",
    "python_full_version": "3.11.7",
    "python_version": "3.11",
    "sys_platform": "linux",
}
REGISTRY = 'source = { registry = "https://index.test/simple" }'
WHEEL = f'wheels = [{{ url = "https://files.test/x-1.0-py3-none-any.whl", hash = "sha256:{"0" * 64}" }}]'


def pins(name: str, text: str) -> Pins:
    return read_pins(name, text, HERE)


def locked(*packages: str, needs: str = '{ name = "x" }', root: str = 'virtual = "."') -> str:
    """A uv.lock whose project has the dependencies `needs`."""
    project = f'[[package]]\nname = "me"\nversion = "0"\nsource = {{ {root} }}\ndependencies = [{needs}]\n'
    return "version = 1\n" + project + "".join(f"[[package]]\n{one}\n" for one in packages)


def a_package(name: str = "x", version: str = "1.0", source: str = REGISTRY, more: str = WHEEL) -> str:
    return f'name = "{name}"\nversion = "{version}"\n{source}\n{more}'


def refusal(name: str, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        require_wheels(pins(name, text))
    assert caught.value.hint
    return caught.value.message


def test_three_formats_lead_to_the_same_packages(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, "alpha", "1.0"), make_wheel(tmp_path, "beta", "2.0+cpu")]
    index = "https://index.test/simple"
    found = [
        pins("uv.lock", uv_lock(index, wheels)),
        pins("pylock.toml", pylock(index, wheels)),
        pins("requirements.txt", requirements(index, wheels)),
    ]
    assert [[one[:4] for one in each.packages] for each in found] == [[one[:4] for one in found[0].packages]] * 3
    assert [(one.name, one.version) for one in found[0].packages] == [("alpha", "1.0"), ("beta", "2.0+cpu")]
    assert [each.complete for each in found] == [True, True, False]  # requirements may lack dependencies


def test_only_what_this_platform_needs_is_installed() -> None:
    needs = """{ name = "x", version = "1.0", marker = "python_full_version < '3.12'" },
      { name = "x", version = "2.0", marker = "python_full_version >= '3.12'" },
      { name = "windows", marker = "sys_platform == 'win32'" }, { name = "Y_y", extra = ["fast"] }"""
    fast = f'{WHEEL}\n[package.optional-dependencies]\nfast = [{{ name = "z" }}]\nslow = [{{ name = "unused" }}]'
    lock = locked(
        a_package(), a_package(version="2.0"), a_package("windows"), a_package("y-y", more=fast), a_package("z"),
        a_package("unused"), needs=needs,
    )  # fmt: skip
    assert [(one.name, one.version) for one in pins("uv.lock", lock).packages] == [
        ("x", "1.0"),
        ("y-y", "1.0"),
        ("z", "1.0"),
    ]


def test_groups_and_extras_of_the_project_are_named_as_left_out() -> None:
    lock = locked(a_package()) + a_package("y").join(["[[package]]\n", "\n"])
    more = 'dependencies = [{ name = "x" }]\n'
    groups = (
        '[package.optional-dependencies]\ngpu = [{ name = "y" }]\n[package.dev-dependencies]\ndev = [{ name = "y" }]\n'
    )
    found = pins("uv.lock", lock.replace(more, more + groups, 1))
    assert found.left_out == ("extra gpu", "group dev")
    assert [one.name for one in found.packages] == ["x"]


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("uv.lock", locked(a_package(source='source = { git = "https://h.test/x" }')), "x (git)"),
        ("uv.lock", locked(a_package(source='source = { editable = "packages/x" }')), "x (folder)"),
        ("uv.lock", locked(a_package(source='source = { path = "x-1.0-py3-none-any.whl" }')), "x (folder)"),
        ("uv.lock", locked(a_package(source='source = { url = "https://h.test/x.tar.gz" }')), "x (url)"),
        ("uv.lock", locked(a_package(source='source = { registry = "../wheels" }')), "x (registry)"),
        ("uv.lock", locked(a_package(more="")), "x 1.0"),
        ("uv.lock", locked(), "0 packages named 'x'"),
        ("uv.lock", locked(a_package(), a_package()), "2 packages named 'x'"),
        ("uv.lock", locked(a_package(version="1.0\\n--index-url http://evil.test")), "damaged"),
        ("uv.lock", locked(a_package("-e .", version="1"), needs='{ name = "-e ." }'), "damaged"),
        ("uv.lock", locked(a_package(), needs='{ name = "x", marker = "os_name = 1" }'), "os_name = 1"),
        ("uv.lock", "version = 2", "format 2"),
        ("uv.lock", "version = 1", "no project"),
        ("uv.lock", 'version = 1\nrequires-python = ">=3.12, <4"', "needs Python >=3.12, <4"),
        ("uv.lock", "version = ", "not valid TOML"),
        ("pylock.toml", 'lock-version = "2.0"', "lock-version"),
        ("pylock.gpu.toml", 'lock-version = "1.0"\n[[packages]]\nname = "x"\n[packages.vcs]\nurl = "u"', "x (git)"),
        (
            "pylock.toml",
            'lock-version = "1.0"\n[[packages]]\nname = "x"\n[packages.directory]\npath = "."',
            "x (folder)",
        ),
        ("pylock.toml", 'lock-version = "1.0"\nenvironments = ["sys_platform == \'win32\'"]', "win32"),
        ("requirements.txt", "x>=1.0", "line 1: no exact version: x>=1.0"),
        ("requirements.txt", "x==1.*", "line 1: no exact version"),
        ("requirements.txt", "a==1\n\n-e .", "line 3: editable"),
        ("requirements.txt", "a==1\n-r more.txt", "line 2: another file"),
        ("requirements.txt", "--no-binary :all:", "line 1: option"),
        ("requirements.txt", "x @ git+https://me:secret@h.test/x", "line 1: git"),
        ("requirements.txt", "./x-1.0.whl", "line 1: path"),
        ("requirements.txt", "--find-links ./wheels\na==1", "line 1: not a URL"),
        ("requirements.txt", "a==1\na==2", "two versions of a"),
        ("requirements.txt", "# nothing\n", "names no packages"),
        ("lock.json", "{}", "neither a lock nor requirements"),
    ],
)
def test_what_is_not_the_same_everywhere_is_refused_by_name(name: str, text: str, named: str) -> None:
    assert named in refusal(name, text)


def test_a_source_is_refused_unless_the_job_allows_its_code_to_run(tmp_path: Path) -> None:
    """On the login node, at submission: so the refusal names the package, what happens, and the key."""
    source = f'sdist = {{ url = "https://files.test/x-1.0.tar.gz", hash = "sha256:{"0" * 64}" }}'
    lock = tmp_path / "uv.lock"
    lock.write_text(locked(a_package(more=source), a_package("y"), needs='{ name = "x" }, { name = "y" }'))
    job = Job(name="job", workload="command", argv=("true",), environment=str(lock))
    cluster = Cluster(name="site", runs=str(tmp_path / "runs"))
    with pytest.raises(ConfigError) as caught:
        environment_of(job, lock, cluster)
    assert caught.value.message == "environment: only source, no wheel, in uv.lock: x 1.0; building runs their code"
    assert caught.value.hint == "to build them on the login node nevertheless: `environment_builds = true`"
    assert environment_of(replace(job, environment_builds=True), lock, cluster).builds
    lock.write_text(locked(a_package(), a_package("y"), needs='{ name = "x" }, { name = "y" }'))
    wheels, built = (environment_of(replace(job, environment_builds=one), lock, cluster) for one in (False, True))
    assert not wheels.builds
    assert wheels.folder != built.folder  # what was built is never taken for wheels


@pytest.mark.parametrize("name", ["plain", "CRLF", "a byte order mark", "twice", "continued"])
def test_the_same_requirements_are_read_however_they_were_saved(tmp_path: Path, name: str) -> None:
    digest = "sha256:" + "0" * 64
    text = f"# by hand\na[B_b]==1.0 --hash={digest}\nc==2 ; sys_platform == 'linux'\n"
    content = {
        "plain": text.encode(),
        "CRLF": text.replace("\n", "\r\n").encode(),
        "a byte order mark": b"\xef\xbb\xbf" + text.removeprefix("# by hand\n").encode(),
        "twice": (text + text).encode(),
        "continued": text.replace(" --", " \\\r\n    --").encode(),
    }[name]
    path = tmp_path / "requirements.txt"
    path.write_bytes(content)
    first, second = pins(path.name, lock_text(path)).packages
    assert (first.name, first.version, first.hashes, first.extras) == ("a", "1.0", (digest,), ("b-b",))
    assert (second.name, second.version) == ("c", "2")


@pytest.mark.parametrize("user", ["me:secret", "me:p@secret", "secret@site.edu:secret", "secret", ":secret"])
def test_no_refusal_shows_a_password_of_an_index(user: str) -> None:
    archive = f'lock-version = "1.0"\n[[packages]]\nname = "x"\narchive = {{ url = "https://{user}@h.test/x.tar.gz" }}'
    for name, text in {
        "pylock.toml": archive,
        "requirements.txt": f"x @ https://{user}@h.test/x.tar.gz",
        "requirements.in": f"--process-dependency-links https://{user}@h.test/simple",
    }.items():
        assert "secret" not in refusal(name, text)
    kept = "https://h.test/a@1/b?to=me@site#c@d"
    assert without_credentials(f"https://{user}@h.test/ and {kept}") == f"https://h.test/ and {kept}"


def test_a_thousand_packages_are_read(tmp_path: Path) -> None:
    text = "".join(f"p{number}==1.{number} --hash=sha256:{number:064x}\n" for number in range(1000))
    assert len(pins("requirements.txt", text).packages) == 1000


def test_an_extra_whose_packages_are_not_pinned_is_refused(tmp_path: Path) -> None:
    """Neither `pip install --no-deps` nor `pip check` asks for them."""

    def check(text: str, *installed: str) -> None:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for one in installed:
            name, _, requires = one.partition(":")
            info = folder / f"{name}-1.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{requires}")
        require_extras(pins("requirements.txt", text), distributions(path=[str(folder)]), HERE)

    fast = (
        "alpha:Provides-Extra: Very_Fast\nProvides-Extra: slow\n"
        "Requires-Dist: Beta[more]>=1 ; extra == 'Very_Fast' and python_version > '3'\n"
        "Requires-Dist: gamma ; extra == 'slow'\n"
        "Requires-Dist: windows ; extra == 'Very_Fast' and sys_platform == 'win32'\n"
    )
    more = "beta:Provides-Extra: more\nRequires-Dist: delta (>=1) ; extra == 'more'\nRequires-Dist: alpha[slow] ; x"
    check("alpha==1", fast)
    check("alpha[very-fast]==1\nbeta==1\ndelta==1", fast, more, "delta")
    for wanted, installed, lacking in [
        ("alpha[very-fast]==1", [fast], "beta (for alpha[very-fast])"),
        ("alpha[VERY.FAST, slow]==1\nbeta==1", [fast, "beta"], "gamma (for alpha[slow])"),
        ("alpha[very_fast]==1\nbeta==1", [fast, more], "delta (for beta[more])"),
    ]:
        with pytest.raises(ConfigError) as caught:
            check(wanted, *installed)
        assert caught.value.message == f"environment: requirements.txt lacks {lacking}"


def test_a_wheel_may_be_named_by_its_url_and_a_refusal_hides_passwords() -> None:
    url = "https://files.test/x-1.0-py3-none-any.whl"
    (one,) = pins("requirements.txt", f"x @ {url}").packages
    assert (one.name, one.url) == ("x", url)
    assert "secret" not in refusal("requirements.txt", "x @ git+https://me:secret@h.test/x")
    assert without_credentials("at https://me:secret@h.test/a b") == "at https://h.test/a b"


@pytest.mark.parametrize(
    ("file", "what", "hint"),
    [
        ("environment.yml", "conda", "activate it"),
        ("conda-lock.yml", "conda", "activate it"),
        ("pixi.lock", "conda", "activate it"),
        ("poetry.lock", "Poetry", "poetry export"),
        ("Pipfile.lock", "Pipenv", "pipenv requirements"),
        ("pyproject.toml", "no lock", "uv lock"),
    ],
)
def test_other_files_are_refused_with_the_way_that_exists(tmp_path: Path, file: str, what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lock_text(tmp_path / file)
    assert what in caught.value.message
    assert hint in caught.value.hint


def test_a_lock_that_was_forgotten_after_a_change_of_the_project_is_noticed(tmp_path: Path) -> None:
    lock = tmp_path / "uv.lock"
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "me"\ndependencies = ["X>=1", "new-one[a]; os_name=="]\n'
    )
    assert older_than_project(lock, locked(a_package())) == ["new-one"]
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "me"\ndependencies = ["X>=1"]\n')
    assert older_than_project(lock, locked(a_package())) == []


VERSIONS = st.sampled_from(["3", "3.8", "3.10", "3.11", "3.11.0", "3.11.7", "3.11.*", "3.12", "3.9.1"])
OPERATORS = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "~="])


def comparisons() -> st.SearchStrategy[str]:
    versions = st.tuples(st.sampled_from(["python_version", "python_full_version"]), OPERATORS, VERSIONS)
    names = ["sys_platform", "os_name", "platform_machine", "platform_system"]
    texts = st.tuples(
        st.sampled_from(names),
        st.sampled_from(["==", "!=", "in", "not in"]),
        st.sampled_from(["linux", "posix", "x86_64", "win32 linux"]),
    )
    valid = versions.filter(lambda one: "*" not in one[2] or one[1] in ("==", "!=")).filter(
        lambda one: one[1] != "~=" or one[2].count(".") > 0
    )
    return st.one_of(valid, texts).map(lambda one: f"{one[0]} {one[1]} {json.dumps(one[2])}")


def markers() -> st.SearchStrategy[str]:
    return st.recursive(
        comparisons(),
        lambda inner: st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda one: f"({one[0]} {one[1]} {one[2]})"
        ),
        max_leaves=5,
    )


@given(st.lists(markers(), min_size=1, max_size=3), st.sampled_from(["and", "or"]))
def test_markers_mean_what_they_mean_to_pip(parts: list[str], joined: str) -> None:
    reference = pytest.importorskip("packaging.markers")
    marker = f" {joined} ".join(parts)
    assert is_true(marker, HERE) == reference.Marker(marker).evaluate({**HERE, "extra": ""}), marker


@given(st.text(alphabet="xy=<>!~()'\" andori_python.version3*[]\n\\;#@-", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for name in ("uv.lock", "pylock.toml", "requirements.txt"):
        try:
            found = read_pins(name, text, HERE)
        except ConfigError:
            continue
        assert all(re.fullmatch(r"[a-z0-9-]+", one.name) and "\n" not in one.version for one in found.packages)
