"""The line that counts rows: what is quick shows nothing, what is long is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vqkit.notebook import counting


def ticking(step_s: float) -> Callable[[], float]:
    """A clock that goes on by so much whenever somebody looks."""
    now_s = 0.0

    def look() -> float:
        nonlocal now_s
        now_s += step_s
        return now_s

    return look


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float | None]]:
    """What a front end was shown."""
    shown: list[tuple[str, float | None]] = []
    monkeypatch.setattr(counting, "_drawer", lambda: lambda *told: shown.append(told))
    return shown


def test_a_short_source_shows_no_line(drawn: list[Any]) -> None:
    assert list(counting.counted(range(1000), "a.csv", clock=ticking(0.01))) == list(range(1000))
    assert drawn == []


def test_a_long_source_counts_and_says_how_long_it_took(drawn: list[Any]) -> None:
    passed = counting.counted(range(1000), "a.csv", 1000, clock=ticking(1.0))
    assert sum(1 for _ in passed) == 1000
    assert drawn[0] == ("a.csv: 400 of 1,000 rows", 0.4)
    assert drawn[-1] == ("a.csv: 1,000 rows in 6 s", 1.0)


def test_where_the_length_is_not_known_there_is_no_bar(drawn: list[Any]) -> None:
    assert list(counting.counted(iter(range(600)), "a.csv", clock=ticking(3.0)))
    assert [part for _, part in drawn] == [None, None, None, 1.0]


def test_rows_are_handed_on_before_the_next_is_asked_for(drawn: list[Any]) -> None:
    asked = []

    def rows() -> Iterator[int]:
        for n in range(3):
            asked.append(n)
            yield n

    next(counting.counted(rows(), "a.csv"))
    assert asked == [0]


def test_what_it_shows_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    counting._on_terminal("<b>\x1b[31m.csv: 5 rows", 1.0)
    assert "\x1b[31m" not in capsys.readouterr().err
    assert "&lt;b&gt;" in counting._line("<b>.csv", 0.5)
