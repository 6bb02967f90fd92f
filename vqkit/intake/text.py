"""A text file: a prompt a line. A folder of them: a prompt a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import SheetError
from .files import first_line, text_encoding
from .table import Bad, Reading, Record

__all__ = ["open_folder", "open_text", "texts_in"]

FILE_MAX = 16 << 20


def open_text(path: Path) -> Reading:
    """The lines of a text file that are not blank, each a `prompt`."""
    codec, words = text_encoding(path)
    first = first_line(path, codec).strip()
    if "\t" in first:  # what Excel calls "Unicode text" is a table with the extension .txt
        raise SheetError(
            f"the first line of {path.name} has tabs in it: {first[:60]!r}; if it is the header"
            " of a table, give the file the extension .tsv",
            path=str(path),
        )
    return Reading(
        path.name,
        _lines(path, codec),
        columns=("prompt",),
        notes=(f"{path.name} was read as {words}, a prompt a line.",),
        empty=f"{path.name} has only blank lines; expected a prompt a line",
    )


def _lines(path: Path, codec: str) -> Iterator[Record]:
    with path.open(encoding=codec) as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield number, {"prompt": line.rstrip("\n")}


def texts_in(folder: Path) -> list[Path]:
    """The .txt files of a folder by name, but for hidden ones."""
    found = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry for entry in found if entry.suffix.lower() == ".txt" and entry.is_file())


def open_folder(folder: Path, texts: Sequence[Path]) -> Reading:
    """The whole text of each file, a `prompt`, and its name, `file`. Rows count from 1.

    The end of the last line is left out.
    """
    others = sum(1 for entry in folder.iterdir() if not entry.name.startswith(".")) - len(texts)
    files = f"{len(texts):,} text file{'' if len(texts) == 1 else 's'}"
    notes = [f"{folder.name} is a folder: its {files}, a prompt each, were read by name."]
    if others:
        notes.append(f"What else {folder.name} holds was left alone: {others:,}.")
    return Reading(folder.name, _files(texts), columns=("prompt", "file"), notes=tuple(notes))


def _files(texts: Sequence[Path]) -> Iterator[Record]:
    for number, path in enumerate(texts, 1):
        try:
            if path.stat().st_size > FILE_MAX:
                raise SheetError(f"{path.name} is larger than {FILE_MAX:,} bytes")
            prompt = path.read_text(encoding=text_encoding(path)[0]).removesuffix("\n")
        except (OSError, SheetError) as error:
            yield number, Bad(f"{path.name} cannot be read: {error}")
            continue
        if prompt and not prompt.isspace():
            yield number, {"prompt": prompt, "file": path.name}
        else:
            yield number, Bad(f"{path.name} is blank", kind="nothing to run")
