"""Two hundred paid renders with every fault of a provider at once, and a process that dies.

``VQKIT_STORM_SEED=7 pytest tests/crash/test_crash_storm.py -k tag -s`` rages another one, and
says what happened in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from crash_kit import Child
from storm import CAPACITY, KILLS, LEFT_ALONE, WEATHER, Storm, climate

from vqkit.mock import CHANCES, Knobs, account_key
from vqkit.selftest import KINDS, _forms

SEED = int(os.environ.get("VQKIT_STORM_SEED", "20"))


@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_jobs_with_every_knob_on_and_twenty_kills_agree_with_the_ledger_to_the_cent(
    kind: str, tmp_path: Path, start: Callable[..., Child]
) -> None:
    storm = Storm(start, tmp_path, kind, SEED)
    storm.rage()
    assert not storm.wrong, "\n\n".join([storm.story(), *storm.wrong[:10]])
    print(storm.story())  # noqa: T201 - for whoever runs it with -s
    assert storm.kills == KILLS
    assert storm.statuses["completed"] > 100, storm.story()
    keys = [account_key(name, generation) for name in CAPACITY for generation in (1, 2, 3)]
    forms = set().union(*(_forms(key) for key in keys))
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "ballast":
            content = path.read_bytes()
            assert not any(form in content for form in forms), path


def test_a_storm_turns_every_knob_there_is() -> None:
    known = {f.name for f in fields(Knobs) if f.name != "chances"} | set(CHANCES)
    mine = climate("tag", 0).keys() | WEATHER.keys() | {"retired", "key_generation"}
    assert known - mine == LEFT_ALONE.keys()
