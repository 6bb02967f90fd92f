"""Finished files: how they get their names, and how a crash cannot half-finish them.

A handler writes to a file under ``.part/``. When it has returned, the files are synced and
hashed, a manifest of them and of the result is written and synced, and then they are
renamed into the output folder. From the manifest on the job *is* finished, whatever happens
to the process before the database hears of it: recovery reads the manifest, completes the
renames and the job, and nothing is rendered again (promise P5).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mimetypes
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import codec
from .errors import PayloadError
from .job import Job, Output, prompt_of
from .receipts import Receipts
from .secrets import redact_json, redact_own

__all__ = ["Made", "OutputFolder", "slug", "sync_folder"]

PART_FOLDER = ".part"
STEP_FILE = "kept as a file, sha256"
SLUG_LENGTH = 40
SLUG_BYTES = 90

_MEDIA = {".webp": "image/webp", ".jsonl": "application/jsonl", ".m4a": "audio/mp4"}


class Made(NamedTuple):
    """A file a handler made: where it is now, and the name it shall have (None: stays)."""

    path: str
    name: str | None


def slug(payload: dict[str, Any]) -> str:
    """A few plain words of the prompt, safe as part of a file name on any system.

    A key of an account is none of them. Letters of all scripts stay; Latin ones lose their
    accents. At most 40 characters and 90 bytes, so that the whole name fits where 143 bytes are
    the limit (encrypted home folders).
    """
    return _slug(redact_own(_subject(payload)))


def _subject(payload: dict[str, Any]) -> str:
    text = prompt_of(payload)
    if text is None:
        return next((value for value in payload.values() if isinstance(value, str)), "")
    return text


def _slug(text: str) -> str:
    words = _words(text[: 4 * SLUG_LENGTH])
    try:
        os.fsencode(words)
    except UnicodeEncodeError:  # a system whose file names have an alphabet of their own
        words = _words(words.encode("ascii", "replace").decode())
    return words or "job"


def _words(text: str) -> str:
    kept = []
    for character in unicodedata.normalize("NFKC", text).lower():
        plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        category = unicodedata.category(character)
        if plain:
            kept.append(plain if plain.isalnum() else "-")
        elif category[0] == "M":  # a vowel or accent belongs to the letter before it
            is_of_a_word = bool(kept) and not kept[-1].isascii()
            kept.append(character if is_of_a_word else "")
        elif category != "Cf":  # joiners and marks of direction show nothing
            kept.append(character if category[0] in "LN" else "-")
    words = unicodedata.normalize("NFC", re.sub("-+", "-", "".join(kept)).strip("-"))
    words = words[:SLUG_LENGTH].encode()[:SLUG_BYTES].decode(errors="ignore")
    return words.strip("-")


def media_type(path: str) -> str:
    """The media type by the file's ending."""
    suffix = Path(path).suffix.lower()
    return _MEDIA.get(suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"


class OutputFolder:
    """Where a queue's finished files go (`root`), and its manifests (`manifests`)."""

    def __init__(self, root: Path, manifests: Path) -> None:
        self.root, self.manifests = root, manifests
        self.receipts = Receipts(manifests.parent / "receipts.jsonl")

    # -- while a handler runs (perhaps in another process) -------------------------------

    def part(self, job: Job, suffix: str, count: int) -> tuple[Path, str]:
        """A file to write to, and the name it will get. `count` numbers a job's outputs."""
        if suffix and not re.fullmatch(r"(\.[A-Za-z0-9]{1,12}){1,3}", suffix):
            raise ValueError(f"output({suffix!r}): expected a file ending such as '.mp4'")
        again = f"-{count}" if count > 1 else ""
        name = f"{job.number:05d}-{slug(job.payload)}-{job.id[-6:]}{again}{suffix}"
        folder = self.root / PART_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        # The fence keeps an attempt that was given up from writing into its successor's file.
        return folder / f"{job.id}.{job.fence}.{count}{suffix}", name

    def kept_part(self, job: Job, suffix: str, count: int) -> Path:
        """The same file at every try of one generation, for what must be fetched only once."""
        folder = self.root / PART_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        safe = suffix if re.fullmatch(r"(\.[A-Za-z0-9]{1,12})?", suffix) else ""
        # No number between the dots: `sweep` leaves it alone.
        return folder / f"{job.id}.g{job.generation}.{count}{safe}"

    def keep_step(self, job: Job, data: bytes) -> dict[str, Any]:
        """Keeps the bytes that a step gave, for its later tries; returns what stands for them."""
        sha256 = hashlib.sha256(data).hexdigest()
        folder = self._step_files(job.id)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{sha256}.{job.fence}"
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / sha256)
        sync_folder(folder)
        return {STEP_FILE: sha256, "bytes": len(data)}

    def step_bytes(self, job: Job, value: Any) -> Any:
        """The bytes a step's value stands for; any other value as it is.

        Raises PayloadError where the file has gone or is not what it was.
        """
        if not isinstance(value, dict) or value.keys() != {STEP_FILE, "bytes"}:
            return value
        path = self._step_files(job.id) / str(value[STEP_FILE])
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != value[STEP_FILE]:
            raise PayloadError(
                f"the {value['bytes']:,} bytes that a step of this job gave were kept in {path},"
                " which has gone or was changed; job.fresh() has the steps done again"
            )
        return data

    def drop_steps(self, job_id: str) -> None:
        """Deletes what `keep_step` kept: the job is completed, with files of its own."""
        shutil.rmtree(self._step_files(job_id), ignore_errors=True)

    def _step_files(self, job_id: str) -> Path:
        return self.root / PART_FOLDER / "steps" / job_id

    # -- when it has returned --------------------------------------------------------------

    def finish(
        self, job: Job, made: Sequence[Made], result_json: str
    ) -> tuple[str, tuple[Output, ...]]:
        """Makes the files the job's own, for good. Returns the result, and them as outputs.

        Where a name was taken, by a render that was asked for again, the result tells the
        new one. Raises OSError where a file is missing or the disk is full; nothing is renamed
        then.
        """
        result_json = redact_json(result_json)
        moves = []
        for file in made:
            path = Path(file.path)
            size, sha256 = _sync_and_hash(path)
            name = None if file.name is None else _clean_name(job, file.name)
            kept = self._stored(path) if name is None else self._free_name(name)
            output = Output(job.number, job.fence, kept, size, sha256, media_type(kept))
            moves.append((None if file.name is None else file.path, output))
            if file.name is not None and kept != file.name:
                result_json = result_json.replace(json.dumps(file.name), json.dumps(kept))
        self._write_manifest(job, result_json, moves)
        self._move(moves)
        return result_json, tuple(output for _, output in moves)

    def forget(self, job_id: str, fence: int) -> None:
        """Drops the manifest: the database knows now."""
        self._manifest(job_id, fence).unlink(missing_ok=True)

    def discard_parts(self, job_id: str, fence: int) -> None:
        """Deletes what an attempt that is over left unfinished."""
        for path in (self.root / PART_FOLDER).glob(f"{job_id}.{fence}.*"):
            path.unlink(missing_ok=True)

    def discard_kept(self, job: Job) -> None:
        """Deletes what was fetched of the job's render: it was another one's."""
        for path in (self.root / PART_FOLDER).glob(f"{job.id}.g{job.generation}.*"):
            path.unlink(missing_ok=True)

    def sweep(self, held: Callable[[], Container[tuple[str, int]]]) -> None:
        """Deletes manifests and parts of attempts that hold no job any more.

        `held` gives the attempts that may still be at work, as (job id, fence). It is asked
        after the files were listed: another process may claim and write at any moment.
        """
        folders = (self.manifests, self.root / PART_FOLDER)
        found = [path for folder in folders for path in folder.glob("*.*.*")]
        at_work = held() if found else ()
        for path in found:
            job_id, fence, *_ = path.name.split(".")
            if fence.isdigit() and (job_id, int(fence)) not in at_work:
                path.unlink(missing_ok=True)

    # -- after a crash -----------------------------------------------------------------------

    def recover(self, job: Job) -> tuple[str, tuple[Output, ...]] | None:
        """The result and files of a job whose handler had returned before the crash.

        None if it had not, or if a file is missing or not what it was. Completes the
        renames that the crash cut short.
        """
        try:
            kept = json.loads(self._manifest(job.id, job.fence).read_text(encoding="utf-8"))
            moves = [(part, Output(*fields)) for part, fields in kept["outputs"]]
            result_json = codec.dumps(json.loads(kept["result"]), "result")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        for part, output in moves:
            final = self.resolve(output.path)
            where = Path(part) if part is not None and not final.exists() else final
            try:
                if _sync_and_hash(where) != (output.size, output.sha256):
                    return None
            except OSError:
                return None
        self._move(moves)
        return result_json, tuple(output for _, output in moves)

    def resolve(self, stored: str) -> Path:
        """Where a stored output is on this machine."""
        return self.root / stored

    def _stored(self, path: Path) -> str:
        path = path.absolute()
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def _free_name(self, name: str) -> str:
        """The name, or the next free one: a clip that was paid for is never overwritten."""
        stem, suffix = name.partition(".")[0], "".join(name.partition(".")[1:])
        candidate, count = name, 1
        while (self.root / candidate).exists():
            count += 1
            candidate = f"{stem}-again{count}{suffix}"
        return candidate

    def _manifest(self, job_id: str, fence: int) -> Path:
        return self.manifests / f"{job_id}.{fence}.json"

    def _write_manifest(
        self, job: Job, result_json: str, moves: Sequence[tuple[str | None, Output]]
    ) -> None:
        self.manifests.mkdir(parents=True, exist_ok=True)
        target = self._manifest(job.id, job.fence)
        temporary = target.with_suffix(".tmp")
        content = json.dumps({"result": result_json, "outputs": moves})
        with temporary.open("w", encoding="ascii") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        sync_folder(self.manifests)

    def _move(self, moves: Sequence[tuple[str | None, Output]]) -> None:
        for part, output in moves:
            if part is not None and Path(part).exists():
                Path(part).replace(self.resolve(output.path))
        if moves:
            sync_folder(self.root)


def _clean_name(job: Job, name: str) -> str:
    """The name a handler's file shall have; a worker process may not have known the key in it."""
    raw, clean = _slug(_subject(job.payload)), slug(job.payload)
    return name if raw == clean else name.replace(raw, clean, 1)


def _sync_and_hash(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size, digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder outlast a power cut."""
    # Some file systems cannot sync a folder; the rename is then as safe as they make it.
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
