"""Finished files as HTML: playing where they can, and small in the notebook.

A notebook keeps what it shows, so nothing big is put into it. A file is named by its way
from the notebook's folder, which JupyterLab and Notebook serve; a small picture of it, made
once and kept in ``.thumbs/`` beside the files, stands in the notebook itself, and is what
GitHub, nbviewer or a colleague without the files see. Small files are put in whole.
"""

from __future__ import annotations

import base64
import io
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from .. import secrets
from ..html import LINE, MUTED, STATUS, TEXT, Markup, element, join
from ..job import Job, Output
from ..snapshot import duration_text
from ..words import failure_of, shorten, what

__all__ = ["Clip", "Media", "card", "cards"]

log = secrets.logger("vqkit.notebook")

_one_large = threading.Lock()  # held while a picture above PIXELS_SMALL is in memory

THUMBS = ".thumbs"
THUMB_SIZE = (360, 270)
THUMB_FRAMES = 16  # of a moving picture
THUMB_BYTES = 64 * 1024
PIXELS_MAX = 70_000_000  # a larger picture is not opened: its points alone take 4 bytes each
PIXELS_SMALL = 8_000_000  # pictures up to this size are made small beside each other
EMBED_BYTES = 96 * 1024  # files up to this size are put into the notebook,
EMBED_TOTAL = 1024 * 1024  # while all of one output stay below this
EMBED_ALL_TOTAL = 48 * 1024 * 1024
TEXT_CHARACTERS = 600
FFMPEG_S = 30.0
MEDIA_STYLE = "width:100%;max-height:260px;object-fit:contain;display:block;background:#8881"


class Clip(NamedTuple):
    """A job and its finished files, each with the place where it is on this machine."""

    job: Job
    files: tuple[tuple[Path, Output], ...] = ()


class Media:
    """Makes files into HTML for one output, and counts what it puts into the notebook.

    `thumbs` is the folder for small pictures; `embed` puts whole files in, up to 48 MB.
    """

    def __init__(self, thumbs: Path, *, embed: bool = False) -> None:
        self._thumbs = thumbs
        self._room = EMBED_ALL_TOTAL if embed else EMBED_TOTAL
        self._file_max = EMBED_ALL_TOTAL if embed else EMBED_BYTES
        self._folder = notebook_folder()
        self.is_outside = False  # a file lies above the notebook's folder

    def prepare(self, clips: Iterable[Clip]) -> None:
        """Makes the small pictures that are missing, several at once."""
        files = {output.sha256: (path, output) for clip in clips for path, output in clip.files}
        with ThreadPoolExecutor(4, "vqkit-thumbs") as pool:
            list(pool.map(lambda file: self._thumb(*file), files.values()))

    def show(self, path: Path, output: Output, label: str) -> Markup:
        """A file as an element that plays or shows it. `label` says what is seen."""
        kind = output.media_type.partition("/")[0]
        if not path.exists():
            return element("div", f"{path.name} is not there any more", style=MUTED)
        match kind:
            case "video":
                return self._video(path, output, label)
            case "audio":
                url = self._url(path, output)
                return element(
                    "audio", src=url, controls="", preload="none", aria_label=label,
                    style="width:100%",
                )  # fmt: skip
            case "image":
                return self._image(path, output, label)
        if kind == "text" or output.media_type in ("application/json", "application/jsonl"):
            return _text(_beginning(path))
        return Markup("")

    def link(self, path: Path) -> Markup:
        """A link to the file; its name is what hovering shows."""
        return element(
            "a", f"{path.suffix[1:] or 'the'} file", href=self._way(path), title=path.name
        )

    def _video(self, path: Path, output: Output, label: str) -> Markup:
        thumb = self._thumb(path, output)
        poster = None if thumb is None else _data_url(thumb, "image/webp")
        # Viewers that take out the video, as GitHub does, leave what stands in it.
        fallback = () if poster is None else (element("img", src=poster, alt=label),)
        return element(
            "video",
            *fallback,
            src=self._url(path, output),
            poster=poster,
            controls="",
            loop="",
            playsinline="",
            # Without a picture of ours the browser fetches the first one.
            preload="metadata" if poster is None else "none",
            aria_label=label,
            style=MEDIA_STYLE,
        )

    def _image(self, path: Path, output: Output, label: str) -> Markup:
        thumb = self._thumb(path, output)
        if thumb is None and (size := _too_large(path)):
            told = f"a picture of {size}: too large to show here"
            return element("div", element("a", told, href=self._way(path)), style=MUTED)
        source = self._url(path, output) if thumb is None else _data_url(thumb, "image/webp")
        image = element("img", src=source, alt=label, style=MEDIA_STYLE)
        return element("a", image, href=self._way(path), title="the whole picture")

    def _url(self, path: Path, output: Output) -> str:
        """Where a front end finds the file: in the notebook itself, or beside it."""
        if output.size <= min(self._file_max, self._room):
            self._room -= output.size
            return _data_url(path.read_bytes(), output.media_type)
        return self._way(path)

    def _way(self, path: Path) -> str:
        way = os.path.relpath(path, self._folder)
        self.is_outside = self.is_outside or way.startswith("..")
        return quote(way)

    def _thumb(self, path: Path, output: Output) -> bytes | None:
        """A small picture of the file, made once; None where there can be none."""
        kept = self._thumbs / f"{output.sha256[:32]}.webp"
        if kept.exists():
            return kept.read_bytes()
        kind = output.media_type.partition("/")[0]
        if kind not in ("image", "video") or not path.exists():
            return None
        try:
            made = _picture_of_video(path) if kind == "video" else _small(path.read_bytes())
        except Exception as error:  # noqa: BLE001 - any file may be behind the name; the log tells
            log.info("no small picture of %s: %s", path.name, error)
            return None
        if made is not None:
            try:
                _keep(kept, made)
            except OSError as error:
                log.info("the small picture of %s is not kept: %s", path.name, error)
        return made


def _keep(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        file.write(data)
    Path(file.name).replace(path)


def notebook_folder() -> Path:
    """The folder of the notebook, or the working folder where no server says which."""
    told = Path(os.environ.get("JPY_SESSION_NAME", ""))
    return told.parent if told.is_absolute() and told.parent.is_dir() else Path.cwd()


def card(clip: Clip, media: Media, *, is_prompt_shown: bool = True) -> Markup:
    """A job's clip with its prompt and what it came from."""
    job = clip.job
    prompt = what(job)
    shown = [media.show(path, output, shorten(prompt, 200)) for path, output in clip.files]
    if not clip.files:
        shown = [_without_file(job)]
    facts = [f"job {job.number}", *([f"sample {job.sample + 1}"] if job.sample else [])]
    facts.append(f"seed {job.seed}")
    facts += [job.account] if job.account else []
    if job.started_ms and job.finished_ms:
        facts.append(duration_text((job.finished_ms - job.started_ms) / 1000))
    links = join(part for path, _ in clip.files for part in (" · ", media.link(path)))
    caption = [element("div", shorten(prompt, 160), title=prompt, style=TEXT)]
    return element(
        "figure",
        *shown,
        element(
            "figcaption",
            *(caption if is_prompt_shown else ()),
            element("div", " · ".join(facts), links, style=f"{MUTED};font-size:85%"),
            style="padding-top:4px;overflow-wrap:anywhere",
        ),
        style=f"margin:0;padding:6px;border:{LINE};box-sizing:border-box;min-width:0",
    )


def cards(clips: Sequence[Clip], media: Media) -> Markup:
    """Cards beside each other, as many as there is room for."""
    grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(210px,1fr));gap:8px"
    return element("div", *(card(clip, media) for clip in clips), style=grid)


def _without_file(job: Job) -> Markup:
    if job.status == "completed":
        result = job.result
        return _text(result if isinstance(result, str) else (job.result_json or "null"))
    colour, sign = STATUS[job.status]
    why = f": {shorten(failure_of(job), 200)}" if job.status == "failed" else ""
    mark = element("span", sign, style=f"color:{colour}")
    return element("div", mark, f" {job.status.replace('_', ' ')}{why}", style=TEXT)


def _text(text: str) -> Markup:
    cut = text if len(text) <= TEXT_CHARACTERS else text[:TEXT_CHARACTERS] + " …"
    style = f"{TEXT};margin:0;max-height:260px;overflow:auto;white-space:pre-wrap;tab-size:4"
    return element("pre", cut, style=style, tabindex="0")


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(4 * TEXT_CHARACTERS + 4).decode("utf-8", "replace")


def _data_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def _picture_of_video(path: Path) -> bytes | None:
    from ..providers.local import _ffmpeg

    exe = _ffmpeg()
    if exe is None:
        return None
    options = "-hide_banner -loglevel error -nostdin -frames:v 1 -f image2pipe -c:v png pipe:1"
    done = subprocess.run(
        [exe, "-i", os.fspath(path), *options.split()],
        capture_output=True,
        timeout=FFMPEG_S,
        start_new_session=True,  # an interrupt of the notebook is not for ffmpeg
        check=False,
    )
    if done.returncode or not done.stdout:
        raise OSError(
            done.stderr.decode("utf-8", "replace").strip()[-200:] or "ffmpeg said nothing"
        )
    return _small(done.stdout)


def _too_large(path: Path) -> str | None:
    """The size in words of a picture that no small one is made of; None for any other."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return "very many points"
    except Exception:  # noqa: BLE001 - no picture that Pillow knows; a browser may know it
        return None
    return f"{width:,} × {height:,} points" if width * height > PIXELS_MAX else None


def _small(data: bytes) -> bytes | None:
    """A picture as a small WebP; one that moves still moves, with at most 16 frames.

    Raises ValueError for one above PIXELS_MAX, before its points are read.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        if width * height > PIXELS_MAX:
            raise ValueError(f"{width} x {height} points are more than {PIXELS_MAX:,}")
        with _one_large if width * height > PIXELS_SMALL else nullcontext():
            return _small_of(image)


def _small_of(image: Any) -> bytes | None:
    from PIL import ImageSequence

    image.draft(None, THUMB_SIZE)  # JPEG: no more points are read than are wanted
    n = getattr(image, "n_frames", 1)
    step = -(-n // THUMB_FRAMES)
    frames: list[Any] = []
    duration = 0.0
    for i, frame in enumerate(ImageSequence.Iterator(image)):
        duration += float(frame.info.get("duration", 0))
        if i % step == 0:
            small = frame.convert("RGBA" if frame.has_transparency_data else "RGB")
            small.thumbnail(THUMB_SIZE)
            frames.append(small)
    first, *more = frames
    if more:
        each = max(20, round(duration / len(frames)))
        moving = _webp(first, save_all=True, append_images=more, duration=each, loop=0)
        if len(moving) <= THUMB_BYTES:
            return moving
    return _webp(first)


def _webp(image: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=70, method=4, **options)
    return buffer.getvalue()
