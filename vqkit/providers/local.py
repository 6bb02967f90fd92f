"""A provider that really renders, offline: short looping clips out of a prompt and a seed.

It asks for nothing but numpy and Pillow. MP4 needs ffmpeg, from the `imageio-ffmpeg`
package or the PATH; without it clips are animated WebP, or GIF where Pillow lacks WebP.
The same prompt, seed and settings give the same bytes on one machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, cast

from ..errors import GiveUp
from ..job import prompt_of

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["local"]

Format = Literal["mp4", "webp", "gif"]
FORMATS: tuple[Format, ...] = ("mp4", "webp", "gif")


class _Job(Protocol):
    @property
    def payload(self) -> Mapping[str, Any]: ...
    @property
    def seed(self) -> int: ...
    def stage(self, name: str, progress: float | None = None, /) -> object: ...
    def check_cancelled(self) -> object: ...
    def log(self, text: str, /) -> object: ...
    def output(self, suffix: str, /) -> AbstractContextManager[Path]: ...


def local(job: _Job) -> dict[str, Any]:
    """Renders the job's prompt into a clip; gives its format, size, length and frame count.

    The prompt is `payload["prompt"]`, else the only text in the payload. Settings, all
    optional: `seconds` (0.5 to 10), `width` and `height` (even, 64 to 1280), `fps`
    (1 to 30), `format` (mp4, webp or gif). GiveUp names a setting that is none of these.
    """
    job.stage("generating")
    settings = _settings(job.payload)
    ffmpeg = _ffmpeg() if settings.format in (None, "mp4") else None
    if settings.format == "mp4" and ffmpeg is None:
        raise GiveUp(
            "format is 'mp4' and there is no ffmpeg here:"
            " pip install imageio-ffmpeg, or ask for 'webp' or 'gif'."
        )
    kind = settings.format or ("mp4" if ffmpeg else "webp" if _has_webp() else "gif")
    if settings.format is None and kind != "mp4":
        job.log(f"no ffmpeg found, so the clip is {kind}; for MP4: pip install imageio-ffmpeg")

    frames = _frames(job, settings)
    # A folder of its own: what is not finished never stands under the job's own name.
    with tempfile.TemporaryDirectory(prefix="vqkit-local-") as folder:
        clip = Path(folder) / f"clip.{kind}"
        if ffmpeg is not None:
            _write_mp4(ffmpeg, clip, frames, settings)
        else:
            _write_with_pillow(clip, frames, settings)
        job.check_cancelled()
        job.stage("saving")
        with job.output(f".{kind}") as path:
            shutil.copyfile(clip, path)
    return {
        "format": kind,
        "width": settings.width,
        "height": settings.height,
        "seconds": round(settings.frames / settings.fps, 3),
        "frames": settings.frames,
    }


# A function's attribute, as a user would set one; mypy knows of no such thing.
local.executor = "process"  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _Settings:
    prompt: str
    seconds: float
    width: int
    height: int
    fps: int
    format: Format | None

    @property
    def frames(self) -> int:
        return max(1, round(self.seconds * self.fps))


def _settings(payload: Mapping[str, Any]) -> _Settings:
    prompt = prompt_of(payload, _SETTING_NAMES)
    if prompt is None and (texts := [k for k, v in payload.items() if isinstance(v, str)]):
        raise GiveUp(
            f"which column is the prompt? None is named prompt, and there are {', '.join(texts)}."
            " Name it so in the sheet, or load it with columns={'its name': 'prompt', …}."
        )
    kind = payload.get("format")
    if kind in (None, ""):
        chosen = None
    elif isinstance(kind, str) and kind.lower().lstrip(".") in FORMATS:
        chosen = cast(Format, kind.lower().lstrip("."))
    else:
        raise GiveUp(f"format is {kind!r}; expected one of {', '.join(FORMATS)}.")
    return _Settings(
        prompt=prompt or "",
        seconds=_number(payload, "seconds", 2, 0.5, 10),
        width=int(_number(payload, "width", 320, 64, 1280, step=2)),
        height=int(_number(payload, "height", 180, 64, 1280, step=2)),
        fps=int(_number(payload, "fps", 12, 1, 30, step=1)),
        format=chosen,
    )


_SETTING_NAMES = {"seconds", "width", "height", "fps", "format"}


def _number(
    payload: Mapping[str, Any], name: str, default: float, low: float, high: float, *, step: int = 0
) -> float:
    """A setting as a number; a sheet may bring it as text, an empty cell means the default."""
    given = payload.get(name)
    if given is None or given == "":
        return default
    try:
        value = float("nan") if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = float("nan")
    if low <= value <= high and (not step or value % step == 0):
        return value
    kind = {0: "a number", 1: "a whole number", 2: "an even number"}[step]
    raise GiveUp(f"{name} is {str(given)[:40]!r}; expected {kind} from {low} to {high}.")


# ------------------------------------------------------------------ frames


def _frames(job: _Job, settings: _Settings) -> Iterator[Image.Image]:
    """One picture after another; asks before each whether the job was cancelled."""
    from .scenes import painter

    size = {"width": settings.width, "height": settings.height}
    paint = painter(settings.prompt, job.seed, **size, seconds=settings.seconds)
    caption = _caption(settings.prompt, **size)
    job.check_cancelled()
    number, told = settings.frames, -1
    for i in range(number):
        job.check_cancelled()
        if (tenth := 10 * i // number) > told:
            told = tenth
            job.stage("rendering", i / number)
        picture = paint(i / number)
        if caption is not None:
            picture.paste(caption, (0, 0), caption)
        yield picture


def _caption(prompt: str, *, width: int, height: int) -> Image.Image | None:
    """The prompt as a transparent picture to lay over each frame; None if nothing is legible.

    At most two lines; what does not fit ends in an ellipsis. Characters the font lacks, most
    emoji and Chinese among them, are left out rather than shown as boxes.
    """
    from PIL import Image, ImageDraw

    font = _font(max(9, round(min(height, width * 0.6) * 0.064)))
    box = font.getmask("\U0010ffff")  # what the font draws for a character it lacks

    def drawable(char: str) -> bool:
        if not char.isprintable():
            return False
        mask = font.getmask(char)
        return (mask.size, bytes(mask)) != (box.size, bytes(box))

    text = prompt[:600]
    legible = {char for char in set(text) if drawable(char)}
    words = "".join(char if char in legible else " " for char in text).split()
    if not words:
        return None
    room, lines = width * 0.92, [""]
    for word in words:
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    cut = len(lines) > 2
    for i, line in enumerate(lines := lines[:2]):
        more = cut and i == len(lines) - 1
        while line and font.getlength(line + "…" * more) > room:
            line, more = line[:-1].rstrip(), True
        lines[i] = line + "…" * more

    step = font.size * 1.3
    top = height - step * len(lines) - font.size * 0.5
    shade = Image.new("L", (1, height))
    for y in range(height):  # darker towards the foot, so that any picture carries white text
        shade.putpixel((0, y), round(180 * min(1, max(0, (y - top + 2 * step) / (height - top)))))
    layer = Image.new("RGBA", (width, height), (6, 6, 14, 0))
    layer.putalpha(shade.resize((width, height)))
    draw = ImageDraw.Draw(layer)
    for i, line in enumerate(lines):
        at = (width / 2, top + (i + 0.5) * step)
        draw.text(at, line, font=font, anchor="mm", fill=(250, 250, 246, 255))
    return layer


def _font(size: int) -> Any:
    """DejaVu Sans as matplotlib ships it, found without importing matplotlib."""
    from importlib.util import find_spec

    from PIL import ImageFont

    spec = find_spec("matplotlib")
    for folder in (spec and spec.submodule_search_locations) or []:
        path = Path(folder, "mpl-data", "fonts", "ttf", "DejaVuSans.ttf")
        if path.exists():
            return ImageFont.truetype(str(path), size)
    return ImageFont.load_default(size)


# ------------------------------------------------------------------ files


def _ffmpeg() -> str | None:
    """The ffmpeg to use: imageio-ffmpeg's, which is known to have H.264, else the PATH's."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe
    except ImportError:
        return shutil.which("ffmpeg")
    try:
        return str(get_ffmpeg_exe())
    except RuntimeError:  # the package without its program, as conda installs it
        return shutil.which("ffmpeg")


def _has_webp() -> bool:
    from PIL import features

    return bool(features.check("webp"))


def _write_mp4(exe: str, path: Path, frames: Iterator[Image.Image], settings: _Settings) -> None:
    """H.264 that every browser plays. One thread and no metadata: the bytes are repeatable."""
    source = f"-f rawvideo -pix_fmt rgb24 -s {settings.width}x{settings.height} -r {settings.fps}"
    colours = "-vf scale=out_color_matrix=bt709,setparams=color_primaries=bt709:color_trc=bt709"
    codec = "-c:v libx264 -preset veryfast -crf 19 -pix_fmt yuv420p -threads 1"
    same = "-map_metadata -1 -fflags +bitexact -flags:v +bitexact -movflags +faststart"
    quiet = "-hide_banner -loglevel error -nostdin -y -threads 1"
    options = f"{quiet} {source} -i pipe:0 {colours} {codec} {same} -f mp4".split()
    command = [exe, *options, os.fspath(path)]
    with tempfile.TemporaryFile() as said, _process(command, said) as (process, stdin):
        with suppress(BrokenPipeError):  # ffmpeg ended early; its code and its words say why
            for picture in frames:
                stdin.write(picture.tobytes())
            stdin.close()
        if process.wait() != 0:
            said.seek(0)
            words = said.read().decode("utf-8", "replace").strip()[-600:] or "it said nothing"
            raise RuntimeError(f"ffmpeg ended with code {process.returncode}: {words}")


@contextmanager
def _process(
    command: list[str], stderr: IO[bytes]
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A child fed on its stdin, that has ended when the block is left, however it is left."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,  # an interrupt of the notebook is ours to answer, not ffmpeg's
    )
    assert process.stdin is not None
    try:
        yield process, process.stdin
    finally:
        process.kill()
        process.wait()
        with suppress(BrokenPipeError):  # what was still buffered has no reader left
            process.stdin.close()


def _write_with_pillow(path: Path, frames: Iterator[Image.Image], settings: _Settings) -> None:
    unit = 10 if path.suffix == ".gif" else 1  # GIF counts hundredths of a second
    ends = [round(1000 * i / settings.fps / unit) * unit for i in range(settings.frames + 1)]
    lengths = [end - start for start, end in pairwise(ends)]
    first = next(frames)
    if path.suffix == ".gif":
        from PIL import Image

        first = first.quantize(255, method=Image.Quantize.MEDIANCUT)
        shared = first  # one palette for all frames: each with its own would flicker
        frames = (picture.quantize(palette=shared) for picture in frames)
        options: dict[str, Any] = {"optimize": False, "disposal": 1}
    else:
        options = {"quality": 82, "method": 2}
    first.save(path, save_all=True, append_images=frames, duration=lengths, loop=0, **options)
