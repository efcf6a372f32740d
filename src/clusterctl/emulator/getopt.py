"""Command lines as getopt_long(3) reads them: `--name=value`, `--name value`, `--na value`, `-Nvalue`, `-N value`."""

from __future__ import annotations

from clusterctl.errors import SlurmError


class Options:
    """One command's options, from words like "nodes=/N": `=` requires a value, `?` allows one, `/N` is short."""

    def __init__(self, known: str) -> None:
        self._kinds: dict[str, str] = {}
        self._letters: dict[str, str] = {}
        for word in known.split():
            name, _, letter = word.partition("/")
            kind = name[-1] if name[-1] in "=?" else ""
            name = name.removesuffix(kind)
            self._kinds[name] = kind
            if letter:
                self._letters[letter] = name

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._kinds)

    def parse(self, arguments: list[str], *, permute: bool = False) -> tuple[dict[str, str], list[str]]:
        """Options by long name, and positional words; the first of those ends the options unless `permute`.

        Raises SlurmError.
        """
        values: dict[str, str] = {}
        others: list[str] = []
        words = arguments[::-1]
        while words:
            word = words.pop()
            if word == "--":
                return values, others + words[::-1]
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                name = self._complete(name)
                if equals and not self._kinds[name]:
                    raise SlurmError(f"option '--{name}' doesn't allow an argument")
                values[name] = value if equals else self._value(name, "", words)
            elif word.startswith("-") and len(word) > 1:
                name = self._letters.get(word[1], "")
                if not name:
                    raise SlurmError(f"invalid option -- '{word[1]}'")
                if word[2:] and not self._kinds[name]:
                    words.append(f"-{word[2:]}")
                    values[name] = ""
                else:
                    values[name] = self._value(name, word[2:], words)
            else:
                others.append(word)
                if not permute:
                    return values, others + words[::-1]
        return values, others

    def _value(self, name: str, attached: str, words: list[str]) -> str:
        if attached or self._kinds[name] != "=":
            return attached
        if not words:
            raise SlurmError(f"option '--{name}' requires an argument")
        return words.pop()

    def _complete(self, name: str) -> str:
        matches = [name] if name in self._kinds else [known for known in self._kinds if known.startswith(name)]
        if len(matches) != 1:
            raise SlurmError(f"option '--{name}' is ambiguous" if matches else f"unrecognized option '--{name}'")
        return matches[0]
