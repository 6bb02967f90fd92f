"""Clips in a notebook: what is shown, what is kept in it, and that nothing in them is HTML."""

from __future__ import annotations

import base64
import io
import os
import pickle
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from vqkit import Queue
from vqkit.errors import UsageError
from vqkit.job import Job
from vqkit.notebook import clips, gallery
from vqkit.testing import drain

EVIL = "<img src=x onerror=alert(1)>\"'</figure>"
TAGS = {
    *("div", "figure", "figcaption", "a", "img", "video", "audio", "pre", "span"),
    *("details", "summary", "table", "thead", "tbody", "tr", "th", "td", "caption"),
}


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(markup)
        self.close()
        assert {tag for tag, _ in self.found} <= TAGS
        assert not [name for _, a in self.found for name in a if name.startswith("on")]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture
def q(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    with Queue(tmp_path / "runs" / "q.db") as q:
        yield q


def paint(job: Any) -> Any:
    """A file of the kind the payload asks for."""
    from PIL import Image

    kind = job.payload.get("kind", "png")
    with job.output(f".{kind}") as path:
        if kind == "png":
            Image.new("RGB", (800, 600), "#446688").save(path)
        elif kind == "webp":
            frames = [Image.new("RGB", (400, 300), (8 * i, 0, 0)) for i in range(30)]
            frames[0].save(path, save_all=True, append_images=frames[1:], duration=50)
        elif kind == "wav":
            path.write_bytes(b"RIFF" + bytes(job.payload.get("size", 100)))
        else:
            path.write_text(job.payload.get("text", "some text"))
    return path


def page_of(shown: Any) -> Page:
    return Page(shown._repr_html_())


# -- the gallery -------------------------------------------------------------------------


def test_each_kind_of_file_plays_in_its_own_way(q: Queue) -> None:
    q.put_many([{"prompt": f"a {kind}", "kind": kind} for kind in ("png", "webp", "wav", "txt")])
    drain(q, paint)
    page = page_of(q.gallery())
    assert [a["alt"] for a in page.all("img")] == ["a webp", "a png"]
    assert [a["aria-label"] for a in page.all("audio")] == ["a wav"]
    assert "some text" in page.text
    assert [a["title"] for a in page.all("a") if "file" not in a["title"]][-1].endswith(".png")


def test_a_video_has_its_first_picture_and_is_fetched_only_when_played(q: Queue) -> None:
    q.put({"prompt": "a fox", "width": 96, "height": 64, "seconds": 0.5}, provider="local")
    q.accounts.add("studio", provider="local")
    drain(q)
    page = page_of(q.gallery())
    (video,) = page.all("video")
    assert video["poster"].startswith("data:image/webp;base64,")
    assert (video["preload"], video["controls"], video["aria-label"]) == ("none", "", "a fox")
    # Where a viewer takes out the video, its first picture is left.
    assert page.all("img") == [{"src": video["poster"], "alt": "a fox"}]


def test_without_ffmpeg_the_browser_finds_the_first_picture(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.put({"prompt": "a fox", "width": 96, "height": 64, "seconds": 0.5}, provider="local")
    q.accounts.add("studio", provider="local")
    drain(q)
    monkeypatch.setattr("vqkit.providers.local._ffmpeg", lambda: None)
    (video,) = page_of(q.gallery()).all("video")
    assert "poster" not in video
    assert video["preload"] == "metadata"


def test_a_big_file_is_named_from_the_notebooks_folder_and_not_put_into_it(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = clips.EMBED_BYTES + 1
    q.put({"prompt": "long & loud?", "kind": "wav", "size": size})
    drain(q, paint)
    html = q.gallery()._repr_html_()
    assert len(html) < 3000
    (audio,) = Page(html).all("audio")
    name = q.outputs()[0].name
    assert audio["src"] == f"runs/q/{name}"
    monkeypatch.setenv("JPY_SESSION_NAME", str(q.outputs_folder.parent / "notes.ipynb"))
    assert page_of(q.gallery()).all("audio")[0]["src"] == f"q/{name}"
    whole = page_of(q.gallery(embed=True)).all("audio")[0]["src"]
    assert len(base64.b64decode(whole.partition(",")[2])) == size + 4


def test_a_file_outside_the_notebooks_folder_comes_with_a_word_about_it(
    q: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.put({"prompt": "x", "kind": "wav", "size": clips.EMBED_BYTES})
    drain(q, paint)
    assert "outside" not in page_of(q.gallery()).text
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    page = page_of(q.gallery())
    assert page.all("audio")[0]["src"].startswith("../runs/q/")
    assert "lie outside the notebook's folder" in page.text


def test_what_a_notebook_keeps_has_a_ceiling(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clips, "EMBED_TOTAL", 2500)
    q.put_many([{"prompt": f"{n}", "kind": "wav", "size": 1000} for n in range(5)])
    drain(q, paint)
    sources = [a["src"] for a in page_of(q.gallery()).all("audio")]
    assert [source.startswith("data:") for source in sources] == [True, True, False, False, False]


def test_a_picture_of_very_many_points_is_named_and_not_opened(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image, ImageFile

    loaded: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load

    def seen(image: Any) -> Any:
        loaded.append(image.size)
        return load(image)

    def render(job: Any) -> bytes:
        buffer = io.BytesIO()
        side = (9_000, 8_000) if job.number == 1 else (3_000, 3_000)
        Image.new("1", side).save(buffer, "PNG")
        return buffer.getvalue()

    q.put_many([{"n": n} for n in range(2)])
    drain(q, render)
    monkeypatch.setattr(ImageFile.ImageFile, "load", seen)
    shown = q.gallery()._repr_html_()
    assert "a picture of 9,000 × 8,000 points: too large to show here" in shown
    assert shown.count("<img") == 1
    assert set(loaded) == {(3_000, 3_000)}


def test_small_pictures_are_made_once_and_kept(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    q.put_many([{"prompt": "still"}, {"prompt": "moving", "kind": "webp"}])
    drain(q, paint)
    first = q.gallery()._repr_html_()
    kept = sorted((q.outputs_folder / ".thumbs").iterdir())
    assert [path.suffix for path in kept] == [".webp", ".webp"]
    frames = set()
    for path in kept:
        with Image.open(path) as image:
            assert max(image.size) <= 360
            frames.add(image.n_frames)
    assert max(frames) in range(2, clips.THUMB_FRAMES + 1)
    monkeypatch.setattr(clips, "_small", lambda data: pytest.fail("made again"))
    assert q.gallery()._repr_html_() == first
    assert [path for path in q.outputs_folder.rglob("*.part") if path.is_file()] == []


def test_a_file_that_is_broken_or_gone_takes_nothing_else_with_it(q: Queue) -> None:
    q.put_many([{"prompt": "good"}, {"prompt": "broken"}, {"prompt": "gone"}])
    drain(q, paint)
    q.outputs(2)[0].write_bytes(b"no picture at all")
    q.outputs(3)[0].unlink()
    page = page_of(q.gallery())
    assert {a["alt"] for a in page.all("img")} == {"good", "broken"}
    assert "is not there any more" in page.text


def test_a_fold_says_which_clips_are_in_it(q: Queue) -> None:
    q.put_many([{"prompt": f"number {n}"} for n in range(25)])
    drain(q, lambda job: job.payload["prompt"])
    html = str(q.gallery()._repr_html_())
    assert re.findall(r"<summary[^>]*>(.*?)</summary>", html) == ["13–24", "25"]


def test_pages_are_newest_first_and_fold(q: Queue) -> None:
    assert repr(q.gallery()) == "<Gallery: no finished clips yet>"
    assert "no finished clips yet" in page_of(q.gallery()).text
    q.put_many([{"prompt": f"number {n}"} for n in range(60)], batch="sixty")
    q.put({"prompt": "another"})
    drain(q, lambda job: job.payload["prompt"])
    first = q.gallery(batch="sixty")
    assert (len(first), first.total, first.pages) == (48, 60, 2)
    page = page_of(first)
    assert len(page.all("details")) == 3
    assert "q.gallery(page=2)" in page.text
    times = [clip.job.finished_ms or 0 for clip in first.clips]
    assert times == sorted(times, reverse=True)
    last = first.older()
    assert repr(last) == "<Gallery: 49–60 of 60 clips, newest first>"
    assert repr(last.older()) == repr(last)
    assert repr(last.newer().newer()) == repr(first)
    shown = {c.job.number for c in (*first.clips, *last.clips)}
    assert shown == set(range(1, 61))
    assert repr(q.gallery(page=9)) == "<Gallery: page 9 is empty>"
    with pytest.raises(UsageError, match="page"):
        q.gallery(page=0)


def test_only_the_newest_render_of_a_job_is_shown(q: Queue) -> None:
    job = q.put({"prompt": "again"})
    drain(q, paint)
    q.requeue(job)
    drain(q, paint)
    (clip,) = q.gallery().clips
    assert [path for path, _ in clip.files] == q.outputs(job)


# -- side by side -----------------------------------------------------------------------


def test_prompts_stand_side_by_side_their_samples_below(q: Queue) -> None:
    q.put_many([{"prompt": "a fox"}, {"prompt": EVIL}], samples=2)
    q.put({"prompt": "a hare"})
    drain(q, paint)
    shown = q.compare(["a fox", EVIL])
    page = page_of(shown)
    assert [a["title"] for a in page.all("th")] == ["a fox", EVIL]
    assert len(page.all("tr")) == 3
    samples = [[clip.job.sample for clip in clips] for _, clips in shown.columns]
    assert samples == [[0, 1], [0, 1]]
    mixed = q.compare(["a fox", 5])
    assert [title for title, _ in mixed.columns] == ["a fox", "a hare"]
    assert "–" in page_of(mixed).text


def test_the_samples_of_one_prompt_stand_side_by_side(q: Queue) -> None:
    q.put({"prompt": "a fox"}, samples=3)
    shown = q.compare("a fox")
    assert [title for title, _ in shown.columns] == ["sample 1", "sample 2", "sample 3"]
    assert page_of(shown).text.count("queued") == 3
    assert repr(shown) == "<Comparison: sample 1: 1, sample 2: 1, sample 3: 1>"
    with pytest.raises(UsageError, match="no job has the prompt 'a foxx'"):
        q.compare(["a foxx"])


# -- one job --------------------------------------------------------------------------------


def test_a_job_shows_its_clip_its_tries_and_its_events(q: Queue) -> None:
    q.put({"prompt": EVIL, "kind": "txt", "text": EVIL})
    job = q.jobs()[0]
    drain(q, paint)
    page = page_of(job)  # an older view shows what is known now
    assert page.text.count(EVIL) >= 2
    assert "completed" in page.text
    assert "begun on paint, try 1" in page.text
    assert re.search(r"paint\d\d[: ]", page.text)


def test_a_failed_job_shows_the_error_of_each_try(q: Queue) -> None:
    def broken(job: Any) -> None:
        raise ValueError(EVIL)

    q.put({"prompt": "x"}, max_attempts=1)
    drain(q, broken)
    text = page_of(q.job(1)).text
    assert f"ValueError: {EVIL}" in text
    assert "failed" in text


def test_a_shown_job_is_a_job_like_any_other(q: Queue) -> None:
    q.put({"prompt": "x"})
    job = q.job(1)
    assert isinstance(job, Job)
    assert repr(job) == '<Job 1: queued, {"prompt":"x"}>'
    copy = pickle.loads(pickle.dumps(job))
    assert type(copy) is Job
    assert copy == job
    assert job._replace(priority=3)._repr_html_().count("<table") == 1
    q.close()
    assert page_of(job).text.count("queued") == 1


def test_long_histories_are_cut(q: Queue) -> None:
    q.put({"prompt": "x"})

    def chatty(job: Any) -> None:
        for n in range(30):
            job.log(f"line {n}")

    drain(q, chatty)
    text = page_of(q.job(1)).text
    assert f"the last {gallery.ROWS_SHOWN} of " in text
    assert "line 29" in text
    assert "line 2\n" not in text


def test_the_notebooks_folder_is_the_one_the_server_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", os.fspath(tmp_path / "a.ipynb"))
    assert clips.notebook_folder() == tmp_path
    monkeypatch.setenv("JPY_SESSION_NAME", "python3-1")
    assert clips.notebook_folder() == Path.cwd()
