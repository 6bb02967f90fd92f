"""Finding a file, and telling how its text is written."""

from __future__ import annotations

import difflib
import mmap
import struct
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from xml.parsers.expat import ExpatError, ParserCreate

from ..errors import SheetError

__all__ = ["ZIP", "find", "first_line", "is_old_office", "refuse_bombs", "text_encoding"]

ZIP = b"PK\x03\x04"
OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# The longer marks first: UTF-32's begins with UTF-16's.
MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32", "UTF-32"),
    (b"\x00\x00\xfe\xff", "utf-32", "UTF-32"),
    (b"\xef\xbb\xbf", "utf-8-sig", "UTF-8 with a byte order mark"),
    (b"\xff\xfe", "utf-16", "UTF-16"),
    (b"\xfe\xff", "utf-16", "UTF-16"),
)
CHUNK = 1 << 16
# An XML part of any name begins so; the last two are UTF-16 without its mark.
XML = (b"<", b"\xef\xbb\xbf<", b"\xff\xfe<", b"\xfe\xff\0<", b"<\0", b"\0<")
MACROS = "vbaProject.bin"  # the one part that is not even looked at

# What a part of a workbook may unpack to.
SIZE_MAX = 1 << 30
MEMORY_MAX = 256 << 20  # for a part that is held in memory: shared texts, styles
RATIO_MAX = 200
RATIO_FROM = 16 << 20  # a small part may well be one text many times over, and harms nobody
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, struct.error)


def find(path: Path, known: Collection[str]) -> None:
    """Raises SheetError unless `path` is a file with data, its extension one of `known`."""
    if path.is_dir():
        raise SheetError(
            f"{path} is a folder; expected a file. {_sheets_in(path, known)}", path=str(path)
        )
    if not path.exists():
        raise SheetError(f"there is no file {path}. {_near(path, known)}", path=str(path))
    extension = path.suffix.lower()
    if extension not in known:
        advice = (
            "open it in Excel or LibreOffice and save it as .xlsx"
            if extension in (".xls", ".xlsb", ".numbers")
            else f"expected one of {', '.join(known)}"
        )
        raise SheetError(
            f"{path.name} has the extension {extension or '(none)'}, which is not read here;"
            f" {advice}",
            path=str(path),
        )
    if path.stat().st_size == 0:
        raise SheetError(f"{path.name} is empty; expected rows of prompts", path=str(path))


def _near(path: Path, known: Collection[str]) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"There is no folder {folder} either; this is looked for from {Path.cwd()}."
    names = {entry.name.lower(): entry.name for entry in folder.iterdir() if entry.is_file()}
    close = difflib.get_close_matches(path.name.lower(), names, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {' or '.join(names[name] for name in close)}?"
    return _sheets_in(folder, known)


def _sheets_in(folder: Path, known: Collection[str]) -> str:
    found = sorted(entry.name for entry in folder.iterdir() if entry.suffix.lower() in known)
    if not found:
        return f"The folder {folder.resolve()} holds no {', '.join(known)} file."
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"In that folder: {', '.join(found[:5])}{more}."


def is_old_office(head: bytes) -> bool:
    """Whether a file that begins so is an OLE container: an old .xls, or a locked workbook."""
    return head.startswith(OLD_OFFICE)


def text_encoding(path: Path) -> tuple[str, str]:
    """The codec of a text file, and its name as a person says it.

    A byte order mark decides; else UTF-8; and Windows-1252 only where UTF-8 fails, which
    takes reading the file once. Raises SheetError for a file that is not text.
    """
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(ZIP) or is_old_office(head):
        raise SheetError(
            f"{path.name} is a workbook or archive, not text; if it is an Excel file,"
            " give it the extension .xlsx",
            path=str(path),
        )
    for mark, codec, words in MARKS:
        if head.startswith(mark):
            _check(path, codec, words)
            return codec, words
    try:
        _check(path, "utf-8", "UTF-8")
    except SheetError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
    else:
        return "utf-8", "UTF-8"
    _check(path, "cp1252", "UTF-8 or Windows-1252")
    return "cp1252", "Windows-1252, since it is not UTF-8: look whether its accents are right"


def first_line(path: Path, codec: str) -> str:
    """The first line that is not blank; '' where there is none."""
    with path.open(encoding=codec) as file:
        return next((line for line in file if not line.isspace()), "")


def refuse_bombs(path: Path) -> None:
    """Raises SheetError for what is no workbook, is locked, or would unpack without bounds."""
    with path.open("rb") as file:
        head = file.read(8)
        if is_old_office(head):
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                is_locked = whole.find("EncryptedPackage".encode("utf-16-le")) >= 0
            _refuse_locked(path, is_locked)
            raise SheetError(
                f"{path.name} is an old Excel file (.xls) by its content; open it and save it"
                " as .xlsx",
                path=str(path),
            )
    try:
        with zipfile.ZipFile(path) as archive:
            for part in archive.infolist():
                _refuse_locked(path, bool(part.flag_bits & 1))
                _refuse_bomb(path, part)
                if not part.filename.endswith(MACROS):
                    _refuse_entities(path, part.filename, archive)
    except SheetError:
        raise
    except BROKEN as error:
        is_cut = head.startswith(b"PK")
        raise SheetError(
            f"{path.name} is "
            + ("cut short or damaged" if is_cut else "not an Excel workbook")
            + ("; copy it again" if is_cut else "; if it is text, give it the extension .csv"),
            path=str(path),
        ) from error


def _refuse_locked(path: Path, is_locked: bool) -> None:
    if is_locked:
        raise SheetError(
            f"{path.name} is protected by a password; open it in Excel and save it without one",
            path=str(path),
        )


def _refuse_bomb(path: Path, part: zipfile.ZipInfo) -> None:
    is_dense = part.file_size > RATIO_FROM and part.file_size > RATIO_MAX * part.compress_size
    is_streamed = "/worksheets/" in part.filename or not part.filename.endswith(".xml")
    size_max = SIZE_MAX if is_streamed or part.filename == "content.xml" else MEMORY_MAX
    if is_dense or part.file_size > size_max:
        raise SheetError(
            f"{path.name} was not opened: its part {part.filename} unpacks from"
            f" {part.compress_size:,} to {part.file_size:,} bytes; at most {size_max:,} and"
            f" {RATIO_MAX} times its size are read. Save the rows as .csv.",
            path=str(path),
            part=part.filename,
        )


def _refuse_entities(path: Path, part: str, archive: zipfile.ZipFile) -> None:
    """Raises SheetError for a document type: entities in it can grow without bounds.

    It can only stand before the first element, behind comments of any length.
    """
    is_at_root = False

    def begin(*_: object) -> None:
        nonlocal is_at_root
        is_at_root = True

    def refuse(*_: object) -> None:
        raise SheetError(
            f"{path.name} cannot be read as a workbook: its part {part} has a document type of its"
            " own (<!DOCTYPE …>), which no spreadsheet program writes and which can grow without"
            " bounds",
            path=str(path),
            part=part,
        )

    parser = ParserCreate()
    parser.StartElementHandler = begin
    parser.StartDoctypeDeclHandler = refuse
    with archive.open(part) as file:
        chunk = file.read(CHUNK)
        if not (part.endswith((".xml", ".rels")) or chunk.lstrip().startswith(XML)):
            return
        try:
            while chunk and not is_at_root:
                parser.Parse(chunk)
                chunk = file.read(CHUNK)
        except ExpatError:
            # What is damaged is told by whoever reads the part. A document type in a form
            # that this parser does not know is refused all the same.
            if b"<!DOCTYPE" in chunk.replace(b"\0", b""):
                refuse()


def _check(path: Path, codec: str, words: str) -> None:
    try:
        with path.open(encoding=codec, newline="") as file:
            while chunk := file.read(CHUNK):
                if "\0" in chunk:
                    raise SheetError(
                        f"{path.name} is not text (it has zero bytes): a binary file, or UTF-16"
                        " without its mark. Save it as UTF-8.",
                        path=str(path),
                    )
    except UnicodeError as error:
        raise SheetError(
            f"{path.name} cannot be read as {words} ({error}); save it as UTF-8", path=str(path)
        ) from error
