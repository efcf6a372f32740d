"""A mount as enroot writes it: SRC:DST[:flag+flag]. The separators cannot be escaped, so paths must not hold them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from clusterctl.errors import ConfigError

# mount(8)'s, of which enroot takes any; `ro` is the one that is used.
FLAGS = frozenset(
    {"ro", "rw", "bind", "rbind", "private", "rprivate", "slave", "rslave", "shared", "rshared"}
    | {"nosuid", "suid", "nodev", "dev", "noexec", "exec", "noatime", "relatime", "nofail"}
)
UNCARRIED = re.compile(r"[,:+\n\\%]")


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    flags: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Parse `text`; SRC alone means the same path inside. Raises ConfigError for anything pyxis would misread."""
        source, *rest = text.split(":")
        if len(rest) > 2:
            raise ConfigError(f"container.mounts: more than SRC:DST:FLAGS: {text}", "a ':' in a path cannot be mounted")
        target = rest[0] if rest and rest[0] else source
        flags = tuple(rest[1].split("+")) if len(rest) == 2 else ()
        mount = cls(source, target, flags)
        for path in (source, target):
            if not path.startswith("/"):
                raise ConfigError(f"container.mounts: not an absolute path: {path!r} in {text}", "write /SRC:/DST")
        mount.check()
        if not target.strip("/"):
            raise ConfigError(
                f"container.mounts: nothing can be mounted over the image itself: {text}", "write /SRC:/DST"
            )
        for flag in flags:
            if flag not in FLAGS and not flag.startswith("x-"):
                close = difflib.get_close_matches(flag, FLAGS, n=1)
                known = f"did you mean {close[0]}?" if close else f"flags: {', '.join(sorted(FLAGS))}"
                raise ConfigError(f"container.mounts: no flag of a mount: {flag!r} in {text}", known)
        return mount

    def check(self) -> None:
        """Raise ConfigError for a path that the grammar of mounts cannot carry."""
        for path in (self.source, self.target):
            if found := UNCARRIED.search(path):
                raise ConfigError(
                    f"container.mounts: {found[0]!r} in a mounted path: {path}",
                    "pyxis cannot escape ',', ':' and '+'; mount a folder above it, or a link without them",
                )

    def __str__(self) -> str:
        return ":".join([self.source, self.target, *(["+".join(self.flags)] if self.flags else [])])
