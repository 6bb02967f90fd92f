"""A line that counts the rows of a long source while they are read; short ones pass unseen.

It is drawn by whoever reads, in the cell that reads: nothing runs in the background. In a
notebook it is HTML under a display handle, on a terminal one line of stderr, elsewhere nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from ..html import LINE, MUTED, TEXT, Markup, element, output
from ..words import clean, shorten
from .progress import is_notebook

__all__ = ["counted"]

T = TypeVar("T")

QUIET_S = 2.0  # what takes no longer shows no line
DRAW_S = 0.5
EVERY = 200  # rows between two looks at the clock

Draw = Callable[[str, float | None], None]


def counted(
    rows: Iterable[T],
    what: str,
    total: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """The same rows. After 2 s a line says how many have passed, of `total` where it is known."""
    began_s = drawn_s = clock()
    draw: Draw | None = None
    n = 0
    for n, row in enumerate(rows, 1):
        yield row
        if n % EVERY == 0 and (now_s := clock()) - drawn_s >= (QUIET_S if draw is None else DRAW_S):
            draw, drawn_s = draw or _drawer(), now_s
            of = f" of {total:,}" if total else ""
            draw(f"{what}: {n:,}{of} rows", n / total if total else None)
    if draw is not None:
        draw(f"{what}: {n:,} rows in {clock() - began_s:.0f} s", 1.0)


def _drawer() -> Draw:
    if is_notebook():
        return _in_notebook()
    if sys.stderr.isatty():
        return _on_terminal
    return lambda text, part: None


def _in_notebook() -> Draw:
    from IPython import display as shown_by

    display: Any = shown_by.display  # IPython carries no types
    handle: Any = None

    def draw(text: str, part: float | None) -> None:
        nonlocal handle
        shown = {"text/html": str(_line(text, part)), "text/plain": text}
        if handle is None:
            handle = display(shown, raw=True, display_id=True)
        else:
            handle.update(shown, raw=True)

    return draw


def _line(text: str, part: float | None) -> Markup:
    bar = () if part is None else (_bar(part),)
    return output(*bar, element("span", text, style=MUTED), style=f"{TEXT};display:flex")


def _bar(part: float) -> Markup:
    full = element("span", style=f"flex:{part:.3f} 0 0;background:var(--jp-brand-color1,#1976d2)")
    rest = element("span", style=f"flex:{1 - part:.3f} 0 0")
    style = f"display:inline-flex;width:200px;height:12px;margin-right:10px;border:{LINE}"
    told = {"aria_valuemin": "0", "aria_valuemax": "100", "aria_valuenow": f"{100 * part:.0f}"}
    return element("span", full, rest, role="progressbar", aria_label="rows", style=style, **told)


def _on_terminal(text: str, part: float | None) -> None:
    percent = "" if part is None else f" {part:4.0%}"
    end = "\n" if part == 1.0 else ""
    sys.stderr.write(f"\r{shorten(clean(text), 70)}{percent}\x1b[K{end}")
    sys.stderr.flush()
