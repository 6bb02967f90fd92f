"""The offline provider, with a job that is nothing but a recorder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pytest
from PIL import Image

from vqkit.errors import GiveUp, JobCancelled
from vqkit.providers import local as module
from vqkit.providers.local import local

SMALL = {"width": 96, "height": 64, "seconds": 0.5}


class FakeJob:
    """What a handler sees of a job; `cancel_when(self)` is the user's wish."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 1,
        cancel_when: Callable[[FakeJob], bool] = lambda job: False,
        **payload: Any,
    ) -> None:
        self.payload = {**SMALL, **payload}
        self.seed = seed
        self.folder, self.cancel_when = folder, cancel_when
        self.stages: list[tuple[str, float | None]] = []
        self.texts: list[str] = []
        self.path: Path | None = None

    def stage(self, name: str, progress: float | None = None) -> None:
        self.stages.append((name, progress))

    def check_cancelled(self) -> None:
        if self.cancel_when(self):
            raise JobCancelled

    def log(self, text: str) -> None:
        self.texts.append(text)

    @contextmanager
    def output(self, suffix: str) -> Iterator[Path]:
        self.path = self.folder / f"{len(list(self.folder.iterdir()))}{suffix}"
        yield self.path


def render(folder: Path, **settings: Any) -> bytes:
    job = FakeJob(folder, **settings)
    local(job)
    assert job.path is not None
    return job.path.read_bytes()


def decoded(path: Path, frame_bytes: int) -> tuple[list[bytes], str]:
    """The frames of a video, and what ffmpeg says about it."""
    # Not imageio_ffmpeg.read_frames: it leaves its pipes open, and warnings are errors here.
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    starts = range(0, len(done.stdout), frame_bytes)
    return [done.stdout[i : i + frame_bytes] for i in starts], done.stderr.decode()


@pytest.fixture
def no_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every process the provider starts."""
    started: list[subprocess.Popen[bytes]] = []

    class Watched(subprocess.Popen):  # type: ignore[type-arg]  # generic only to the checker
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(module.subprocess, "Popen", Watched)
    return started


@pytest.mark.parametrize("kind", ["mp4", "webp", "gif"])
def test_the_same_prompt_and_seed_give_the_same_bytes(tmp_path, kind):
    one, two = (render(tmp_path, prompt="a fox in the rain", format=kind) for _ in range(2))
    assert one == two


def test_another_seed_or_prompt_gives_another_clip(tmp_path):
    clips = {
        render(tmp_path, prompt=prompt, seed=seed) for prompt in ("sea", "city") for seed in (1, 2)
    }
    assert len(clips) == 4


def test_an_mp4_has_the_frames_and_size_that_were_asked_for(tmp_path):
    job = FakeJob(tmp_path, prompt="hills", seconds=1.5, fps=10, width=128, height=96)
    result = local(job)
    assert result == {"format": "mp4", "width": 128, "height": 96, "seconds": 1.5, "frames": 15}
    assert job.path is not None
    assert job.path.suffix == ".mp4"
    frames, said = decoded(job.path, 128 * 96 * 3)
    assert all(word in said for word in ("h264", "yuv420p(tv, bt709", "128x96", "10 fps"))
    assert len(frames) == 15
    assert len(set(frames)) > 10, "the picture moves"
    head = job.path.read_bytes()
    assert head.index(b"moov") < head.index(b"mdat"), "plays before it is wholly loaded"


def test_settings_may_come_as_text_and_empty_cells_mean_the_default(tmp_path):
    job = FakeJob(tmp_path, prompt="x", seconds="0.5", fps="", width="96.0", format="GIF")
    assert local(job)["frames"] == 6
    assert job.path is not None
    with Image.open(job.path) as clip:
        assert (clip.format, clip.size) == ("GIF", (96, 64))


def test_without_ffmpeg_the_clip_is_webp_and_the_log_says_so(tmp_path, no_ffmpeg):
    job = FakeJob(tmp_path, prompt="forest")
    assert local(job)["format"] == "webp"
    assert job.path is not None
    with Image.open(job.path) as clip:
        assert (clip.format, clip.n_frames, clip.info["loop"]) == ("WEBP", 6, 0)
    assert "imageio-ffmpeg" in job.texts[0]


def test_without_ffmpeg_an_mp4_that_was_asked_for_is_refused(tmp_path, no_ffmpeg):
    with pytest.raises(GiveUp, match="pip install imageio-ffmpeg"):
        local(FakeJob(tmp_path, prompt="forest", format="mp4"))


def test_without_ffmpeg_and_webp_the_clip_is_gif(tmp_path, no_ffmpeg, monkeypatch):
    monkeypatch.setattr(module, "_has_webp", lambda: False)
    assert local(FakeJob(tmp_path, prompt="forest"))["format"] == "gif"


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "   \n\t",
        "🦊🔥👩‍👩‍👧‍👦 🇫🇷",
        "مرحبا بالعالم",
        "שלום fox עולם",
        "夜の海",
        "a\x00b\u202ec\ufeff",
        "lone \ud800 surrogate",
        "Z̷̢͈a̶l̵g̴o",
        "W" * 5000,
        "a river of words " * 900,
        42,
    ],
    ids=ascii,
)
def test_any_prompt_renders(tmp_path, prompt):
    assert len(render(tmp_path, prompt=prompt, format="webp")) > 500


@pytest.mark.parametrize(
    "payload",
    [{"text": "snow"}, {"Prompt": "snow", "note": "first"}, {"text": "snow", "format": "webp"}],
)
def test_the_prompt_goes_by_its_name_in_any_case_or_is_the_only_text(tmp_path, payload):
    named = render(tmp_path, prompt="snow", format="webp")
    assert render(tmp_path, **{"format": "webp", **payload}) == named


def test_a_number_is_a_prompt_too(tmp_path):
    number = render(tmp_path, prompt=42, format="webp", note="16:9")
    assert number == render(tmp_path, prompt="42", format="webp")


def test_where_several_texts_might_be_the_prompt_none_is_guessed(tmp_path):
    with pytest.raises(GiveUp, match="None is named prompt, and there are scene, promt"):
        render(tmp_path, scene="harbour", promt="a harbour at dusk")


def caption(text: str) -> Image.Image | None:
    return module._caption(text, width=320, height=180)


@pytest.mark.parametrize("text", ["a red fox", "مرحبا بالعالم", "a river of words " * 900])
def test_the_caption_can_be_read_at_the_foot_of_the_picture(text):
    layer = caption(text)
    assert layer is not None
    white = layer.convert("L").point(lambda v: 255 * (v > 200)).getbbox()
    assert white is not None
    left, top, right, bottom = white
    assert 40 < right - left <= 0.92 * 320
    assert 8 <= bottom - top <= 32
    assert top > 0.8 * 180


def test_the_caption_leaves_out_what_the_font_cannot_draw():
    plain, adorned = caption("a red fox"), caption("a 🦊 red\x00 \ud800fox\u202e 海")
    assert plain is not None
    assert adorned is not None
    assert plain.tobytes() == adorned.tobytes()
    assert caption("🦊 海") is None


@pytest.mark.parametrize("place", range(11))
def test_every_scene_paints_at_odd_shapes_and_ends_where_it_began(place):
    from vqkit.providers.scenes import painter

    for width, height in ((64, 200), (300, 64)):
        paint = painter("", place, width=width, height=height, seconds=2)
        assert paint(0.0).size == (width, height)
        assert paint(0.3).tobytes() != paint(0.0).tobytes()
        start, end = paint(0.0).convert("L"), paint(1.0 - 1e-6).convert("L")
        apart = [abs(a - b) for a, b in zip(start.tobytes(), end.tobytes(), strict=True)]
        assert sum(apart) / len(apart) < 0.5


def test_stages_come_in_order_and_progress_only_grows(tmp_path):
    job = FakeJob(tmp_path, prompt="sea")
    local(job)
    names = [name for name, _ in job.stages]
    assert list(dict.fromkeys(names)) == ["generating", "rendering", "saving"]
    told = [progress for name, progress in job.stages if name == "rendering"]
    assert told == sorted(told)
    assert (told[0], len(told)) == (0.0, 6)


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("seconds", 60, "seconds is '60'; expected a number from 0.5 to 10."),
        ("seconds", "soon", "seconds is 'soon'; expected a number from 0.5 to 10."),
        ("seconds", float("nan"), "seconds is 'nan'; expected a number from 0.5 to 10."),
        ("width", 321, "width is '321'; expected an even number from 64 to 1280."),
        ("height", [180], "height is '[180]'; expected an even number from 64 to 1280."),
        ("height", True, "height is 'True'; expected an even number from 64 to 1280."),
        ("fps", 12.5, "fps is '12.5'; expected a whole number from 1 to 30."),
        ("fps", 10**400, "fps is '1"),
        ("format", "avi", "format is 'avi'; expected one of mp4, webp, gif."),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_bad_setting_gives_up_with_one_sentence(tmp_path, setting, value, sentence):
    with pytest.raises(GiveUp) as caught:
        local(FakeJob(tmp_path, prompt="sea", **{setting: value}))
    assert caught.value.reason.startswith(sentence)
    assert not list(tmp_path.iterdir())


def test_cancelling_stops_the_render_and_leaves_no_ffmpeg(tmp_path, children):
    job = FakeJob(tmp_path, prompt="sea", cancel_when=lambda job: len(job.stages) >= 4)
    with pytest.raises(JobCancelled):
        local(job)
    assert len(job.stages) == 4, "it stopped at once"
    assert [child.returncode is not None for child in children] == [True]
    assert not list(tmp_path.iterdir())


def test_a_failing_ffmpeg_is_quoted(tmp_path, monkeypatch, children):
    fake = tmp_path / "ffmpeg"
    fake.write_text("#!/bin/sh\necho 'Unknown encoder libx264' >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(module, "_ffmpeg", lambda: str(fake))
    with pytest.raises(RuntimeError, match="code 3: Unknown encoder libx264"):
        local(FakeJob(tmp_path, prompt="sea"))
    assert [child.returncode for child in children] == [3]


def test_it_asks_for_a_process_and_its_import_is_cheap():
    assert local.executor == "process"
    script = (
        "import sys, vqkit.providers.local\n"
        "print(sorted({'numpy', 'PIL', 'matplotlib', 'imageio_ffmpeg'} & set(sys.modules)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"
