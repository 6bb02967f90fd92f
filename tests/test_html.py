"""Nothing a prompt, a handler or a file name says is ever taken for HTML."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vqkit.html import bar, escape, job_html, table
from vqkit.job import STATUSES, Job

EVIL = [
    "<img src=x onerror=alert(1)>",
    "</td></tr></table><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)",
    "&lt;b&gt; &amp; <!-- ",
    "javascript:alert(1)<a href=",
]
SAFE_TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td", "div", "span"}
SAFE_ATTRIBUTES = {"class", "style", "scope", "role", "title"}


class Reader(HTMLParser):
    """What a browser would make of it: tags, attributes, text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment got in: {data}")


def read_safely(markup: str) -> Reader:
    page = Reader(markup)
    assert page.tags <= SAFE_TAGS
    assert {a for a in page.attributes if not a.startswith("aria-")} <= SAFE_ATTRIBUTES
    return page


@given(st.text() | st.sampled_from(EVIL))
@settings(deadline=None)
def test_escaped_text_is_text_and_can_be_sent(text: str) -> None:
    shown = escape(text)
    assert not set(shown) & set("<>\"'")
    assert all(c in "\n\t" or " " <= c < "\x7f" or c >= "\xa0" for c in shown)
    shown.encode("utf-8")


@pytest.mark.parametrize("sign", ["\0", "\x07", "\x1b", "\r", "\x7f", "\x85", "\x9b", "\ud83e"])
def test_what_html_cannot_show_becomes_the_replacement_sign(sign: str) -> None:
    assert escape(f"a{sign}b") == "a\ufffdb"


def test_none_is_the_empty_text_and_other_values_are_shown() -> None:
    assert [escape(v) for v in (None, 0, False, "a\n\tb")] == ["", "0", "False", "a\n\tb"]


@pytest.mark.parametrize("evil", EVIL)
def test_a_table_shows_what_it_is_given_as_text(evil: str) -> None:
    page = read_safely(table((evil, "b"), [(evil, 1), (None, evil)], caption=evil))
    assert page.text.count(evil) == 4


@pytest.mark.parametrize("evil", EVIL)
def test_a_bar_shows_an_unknown_status_as_text(evil: str) -> None:
    page = read_safely(bar({"completed": 3, evil: 1}))
    assert "3 completed" in page.text


def test_a_bar_says_its_numbers_in_words_and_survives_having_none() -> None:
    full = bar({status: n for n, status in enumerate(STATUSES)})
    assert "4 failed" in read_safely(full).text
    assert 'aria-valuetext="3 completed, 1 running, 2 in doubt, 4 failed, 5 cancelled"' in full
    assert "no jobs yet" in read_safely(bar({})).text
    assert "no jobs yet" in read_safely(bar({"queued": 0})).text


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("status", STATUSES)
def test_a_job_shows_everything_a_user_or_a_handler_said_as_text(status: Any, evil: str) -> None:
    error = {"type": evil, "message": evil, "line": evil, "traceback": evil}
    job = Job(
        *(1, evil, json.dumps({evil: evil})),
        status=status,
        stage=evil,
        account=evil,
        reason=evil,
        source=evil,
        row=3,
        result_json=json.dumps(evil),
        error_json=json.dumps(error),
        attempt=1,
    )
    for markup in (job_html(job), job._repr_html_()):
        text = read_safely(markup).text
        assert text.count(evil) >= 6
        assert "job 1" in text
