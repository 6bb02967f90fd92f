"""What JSON can carry goes in and comes back; the rest is refused, and its place is named."""

from __future__ import annotations

import enum
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vqkit import codec
from vqkit.errors import PayloadError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(codec.INT_MIN, codec.INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)


class Colour(str, enum.Enum):  # noqa: UP042 - the older form, whose str() is not its value
    RED = "red"


def looped() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@given(JSON)
@settings(deadline=None)
def test_a_value_comes_back_as_it_went_in(value: Any) -> None:
    text = codec.dumps(value)
    assert text.isascii()
    assert codec.loads(text) == value
    assert repr(codec.loads(text)) == repr(value)  # 1, 1.0 and True are told apart


@given(st.dictionaries(TEXT, LEAVES, min_size=2))
@settings(deadline=None)
def test_the_order_of_keys_does_not_change_the_name(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert codec.content_hash(value) == codec.content_hash(turned)
    assert codec.canonical(value) == codec.canonical(turned)


@given(JSON, JSON)
@settings(deadline=None)
def test_different_values_have_different_names(one: Any, other: Any) -> None:
    same = codec.canonical(one) == codec.canonical(other)
    assert (codec.content_hash(one) == codec.content_hash(other)) == same


def test_one_and_one_point_zero_and_true_are_three_values() -> None:
    assert len({codec.content_hash({"n": n}) for n in (1, 1.0, True, "1")}) == 4


def test_a_name_is_the_same_on_every_machine() -> None:
    # Stored keys are made of these: another value here puts every sheet in twice.
    assert codec.content_hash({"prompt": "a fox", "n": 2}) == "8eeda69d63c4ab5f3f55acfad2b6794b"
    assert codec.derived_seed("a fox", 0) == 310569896


@given(st.lists(LEAVES))
@settings(deadline=None)
def test_a_seed_fits_31_bits_and_is_the_same_for_equal_values(values: list[Any]) -> None:
    seed = codec.derived_seed(*values)
    assert 0 <= seed < 2**31
    assert seed == codec.derived_seed(*values)


def test_seeds_of_neighbours_differ() -> None:
    assert len({codec.derived_seed("a fox", n) for n in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "payload['deep'][1] is nan, which JSON has no word for"),
        (float("-inf"), "payload['deep'][1] is -inf"),
        (b"raw", "payload['deep'][1] is a bytes"),
        ("caf\udce9", "payload['deep'][1] has half a character at position 3"),
        (2**63, "payload['deep'][1] is an integer beyond 64 bits"),
        (-(2**63) - 1, "payload['deep'][1] is an integer beyond 64 bits"),
        ({1: "one"}, "payload['deep'][1] has the key 1, a int; keys are text. Use '1'"),
        ({"\ud800": 1}, "a key of payload['deep'][1] has half a character"),
        (date(2026, 1, 1), "payload['deep'][1] is a date"),
        (Path("/a"), "payload['deep'][1] is a"),
        ({1, 2}, "payload['deep'][1] is a set"),
        (1 + 2j, "payload['deep'][1] is a complex"),
        (looped(), "is nested deeper than 100 levels (or contains itself)"),
    ],
)
def test_what_json_cannot_carry_is_refused_and_its_place_named(value: Any, says: str) -> None:
    with pytest.raises(PayloadError) as caught:
        codec.dumps({"deep": ["fine", value]})
    assert says in str(caught.value)
    assert "payload['deep'][1]" in caught.value.where


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0, -0.0, 5e-324, 1.7976931348623157e308])
def test_the_outermost_numbers_fit(number: float) -> None:
    assert repr(codec.loads(codec.dumps([number]))) == repr([number])


def test_a_subclass_of_text_is_text_as_value_and_as_key() -> None:
    assert codec.plain({Colour.RED: Colour.RED}) == {"red": "red"}
    assert type(codec.plain(Colour.RED)) is str


def test_numpys_values_become_pythons() -> None:
    np = pytest.importorskip("numpy")
    value = {"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True), "d": np.arange(2)}
    assert json.loads(codec.dumps(value)) == {"a": 3, "b": 0.5, "c": True, "d": [0, 1]}
    with pytest.raises(PayloadError, match="is nan"):
        codec.dumps(np.float64("nan"))


def test_a_tuple_becomes_a_list_and_none_stays_none() -> None:
    assert codec.loads(codec.dumps((1, (2,)))) == [1, [2]]
    assert codec.loads(None) is None


@given(st.dictionaries(st.text(), JSON, max_size=6))
def test_both_forms_of_a_payload_are_those_of_dumps_and_canonical(payload):
    plain = codec.plain(payload)
    assert codec.encoded(plain) == (codec.dumps(payload), codec.canonical(payload))
