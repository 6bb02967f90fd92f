"""LibreOffice as a second reader: what it shows in the cells of a workbook."""

import csv
import shutil
import subprocess
from pathlib import Path

import pytest

SOFFICE = shutil.which("soffice")
needs_office = pytest.mark.skipif(
    SOFFICE is None, reason="LibreOffice is not installed (apt install libreoffice-calc-nogui)"
)
# Comma, quotation mark, UTF-8, from line 1, text in quotes, values as they are, all sheets.
FILTER = "csv:Text - txt - csv (StarCalc):44,34,76,1,,0,true,false,false,false,false,-1"


def sheets_in_office(book: Path, folder: Path) -> dict[str, list[list[str]]]:
    """The cells of each sheet of a workbook by the sheet's name, as LibreOffice reads them."""
    out = folder / f"{book.stem}-office"
    profile = (folder / "office-profile").as_uri()  # of its own, so that runs do not meet
    ran = subprocess.run(
        [
            *(str(SOFFICE), f"-env:UserInstallation={profile}", "--headless"),
            *("--convert-to", FILTER, "--outdir", str(out), str(book)),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = {}
    for path in out.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            found[path.stem.removeprefix(f"{book.stem}-")] = list(csv.reader(file))
    assert found, ran.stdout + ran.stderr
    return found
