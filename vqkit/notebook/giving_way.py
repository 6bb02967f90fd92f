"""How work on a thread beside the kernel's loop keeps out of that loop's way."""

from __future__ import annotations

import time

__all__ = ["give_way"]

LET_GO_S = 50e-6  # long enough for a thread that waits to wake up


def give_way() -> None:
    """Lets go of the interpreter for a moment, so that whoever waits for it goes on at once.

    A thread that computes is asked for the interpreter only after 5 ms
    (`sys.getswitchinterval`), and hears it when the C function it is in returns. The kernel's
    loop waits that long each time it comes back from a system call, and one turn of it makes
    several: its turns came up to 30 ms late beside a picture being drawn, 7 ms with this between
    any two steps of a millisecond. The interval is the user's, for the whole process: left alone.
    """
    time.sleep(LET_GO_S)
