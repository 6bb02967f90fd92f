"""A set of marks for a million rows, in a quarter of the room."""

from __future__ import annotations

from array import array

__all__ = ["Seen"]


class Seen:
    """Whole numbers from 0 below 2**63, in 12 to 24 bytes each, where a set takes 65.

    Open addressing with linear probing: the marks are parts of hashes, and so spread already.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def add(self, mark: int) -> bool:
        """Adds it. False if it was there."""
        if 3 * self._n > 2 * len(self._slots):
            self._grow()
        return self._put(mark + 1)  # 0 is a slot that is free

    def _put(self, mark: int) -> bool:
        slots, last = self._slots, len(self._slots) - 1
        at = mark & last
        while found := slots[at]:
            if found == mark:
                return False
            at = (at + 1) & last
        slots[at] = mark
        self._n += 1
        return True

    def _grow(self) -> None:
        old, self._slots, self._n = self._slots, array("Q", bytes(16 * len(self._slots))), 0
        for mark in old:
            if mark:
                self._put(mark)
