"""Rows that differ from what was put only by their columns: which, and how to say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

__all__ = ["Recolumned", "compared"]

Payload = Mapping[str, Any]


class Recolumned(NamedTuple):
    """What has become of a sheet's columns since its rows were put, as payloads name them.

    `renamed` is {name now: name before}. `alike` rows, of those looked at, differ by nothing else.
    """

    added: tuple[str, ...]
    lost: tuple[str, ...]
    renamed: Mapping[str, str]
    alike: int = 0

    def __str__(self) -> str:
        said = [f"{old!r} is {new!r} now" for new, old in self.renamed.items()]
        said += [f"{name!r} is new" for name in self.added]
        said += [f"{name!r} is not there any more" for name in self.lost]
        return ", ".join(said[:6]) + (", …" if len(said) > 6 else "")

    def columns(self, asked: Any) -> Any:
        """The `columns` with which the rows would be what was put; None where none would do.

        `asked` are those of now.
        """
        if self.lost:
            return None
        if asked is not None and not isinstance(asked, Mapping):
            return None if self.renamed else [c for c in asked if c not in self.added]
        heads = {to: column for column, to in (asked or {}).items() if to is not None}
        new = {heads.get(name, name): to for name, to in self.renamed.items()}
        return {**(asked or {}), **new, **dict.fromkeys(heads.get(n, n) for n in self.added)}


def compared(pairs: Sequence[tuple[Payload, Payload]], before: Set[str]) -> Recolumned | None:
    """What became of the columns, where most rows differ by that and by nothing else.

    `pairs` are rows as they are and as they were put, `before` all names that were put. A cell
    that was filled in under a name that other rows had is an edit, not another column.
    """
    now = list(dict.fromkeys(name for new, _ in pairs for name in new))
    was = list(dict.fromkeys(name for _, old in pairs for name in old))
    added = [name for name in now if name not in before]
    lost = [name for name in was if name not in now]
    renamed = {}
    for name in list(added):
        for old_name in list(lost):
            if all(new.get(name) == old.get(old_name) for new, old in pairs):
                renamed[name] = old_name
                added.remove(name)
                lost.remove(old_name)
                break
    if not (added or lost or renamed):
        return None
    alike = 0
    for new, old in pairs:
        kept = [(new[name], old[name]) for name in new.keys() & old.keys()]
        kept += [(new[n], old.get(o)) for n, o in renamed.items() if n in new]
        alike += bool(kept) and all(one == other for one, other in kept)
    if 2 * alike < len(pairs):
        return None
    return Recolumned(tuple(added), tuple(lost), renamed, alike)
