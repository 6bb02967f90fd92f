"""Finished files: their names, and what a crash, or a hostile prompt, cannot do to them."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vqkit import codec
from vqkit.job import Job
from vqkit.outputs import Made, OutputFolder, media_type, slug


@pytest.fixture
def folder(tmp_path: Path) -> OutputFolder:
    return OutputFolder(tmp_path / "out", tmp_path / "finished")


def job_of(prompt: Any = "a fox", number: int = 1, fence: int = 1) -> Job:
    return Job(number, f"id{number:06d}", codec.dumps({"prompt": prompt}), fence=fence)


def make(folder: OutputFolder, job: Job, text: str = "clip", suffix: str = ".mp4") -> list[Made]:
    path, name = folder.part(job, suffix, 1)
    path.write_text(text)
    return [Made(str(path), name)]


def files(folder: OutputFolder) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.root.iterdir() if path.is_file()}


# -- names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("A red fox, running", "a-red-fox-running"),
        ("CON", "con"),
        ("a/b:c\\d|e?f*g", "a-b-c-d-e-f-g"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", "job"),
        ("🦊🦊🦊", "job"),
        ("ein Fuchs 🦊 läuft", "ein-fuchs-lauft"),
        ("\0\n\t\r", "job"),
        ("--rm -rf ~", "rm-rf"),
        ("狐が走る、雪の中", "狐が走る-雪の中"),
        ("Рыжая лиса бежит по снегу", "рыжая-лиса-бежит-по-снегу"),
        ("ثعلب أحمر", "ثعلب-أحمر"),
        ("लोमड़ी बर्फ में", "लोमड़ी-बर्फ-में"),
        ("カ\u3099ラス ﾊﾟﾝ", "ガラス-パン"),  # composed, and of full width
        ("x\u0304y İstanbul STRASSE Straße", "xy-istanbul-strasse-straße"),
        ("a\u202efox\u200d", "afox"),  # nothing that turns the direction of a name
        ("狐" * 100, "狐" * 30),
        ("", "job"),
        ("x" * 10_000, "x" * 40),
        ("word " * 3000, "word-word-word-word-word-word-word-word"),
        (42, "42"),
        (None, "job"),
        (["a", "list"], "job"),
    ],
)
def test_a_prompt_becomes_a_few_safe_words(prompt: Any, words: str) -> None:
    assert slug({"prompt": prompt}) == words


def test_without_a_prompt_the_first_text_gives_the_words() -> None:
    assert slug({"n": 3, "title": "An Owl", "other": "x"}) == "an-owl"
    assert slug({}) == "job"


@given(st.text(max_size=200))
def test_any_prompt_is_a_name_on_any_system(prompt: str) -> None:
    words = slug({"prompt": prompt})
    assert words
    assert len(words) <= 40
    assert len(words.encode()) <= 90
    assert words == unicodedata.normalize("NFC", words)
    assert all(c == "-" or unicodedata.category(c)[0] in "LMN" for c in words)
    assert slug({"prompt": words}) == words


def test_a_system_that_has_no_such_letters_gets_plain_ones(monkeypatch: Any) -> None:
    monkeypatch.setattr("os.fsencode", lambda text: text.encode("latin-1"))
    assert slug({"prompt": "a 狐 runs"}) == "a-runs"
    assert slug({"prompt": "狐"}) == "job"


def test_hostile_prompts_stay_in_the_folder_and_apart(folder: OutputFolder) -> None:
    prompts = [
        "CON",
        "a/b:c",
        "🦊",
        "Cat",
        "cat",
        "x" * 10_000,
        "../../etc",
        "cat",
        "nul.txt",
        "狐" * 99,
    ]
    for number, prompt in enumerate(prompts, 1):
        job = job_of(prompt, number)
        folder.finish(job, make(folder, job, prompt[:50]), "null")
    assert sorted(files(folder).values()) == sorted(prompt[:50] for prompt in prompts)
    assert len({name.lower() for name in files(folder)}) == len(prompts)
    assert {path.parent for path in folder.root.rglob("*") if path.is_file()} == {folder.root}
    assert all(len(name.encode()) < 143 for name in files(folder))


def test_a_file_that_is_there_is_never_overwritten(folder: OutputFolder) -> None:
    names = []
    for fence in (1, 2, 3):
        job = job_of(fence=fence)
        made = make(folder, job, f"render {fence}", ".tar.gz")
        result_json, outputs = folder.finish(job, made, codec.dumps({"clip": made[0].name}))
        names.append(outputs[0].path)
        assert json.loads(result_json) == {"clip": outputs[0].path}
    assert names == [
        "00001-a-fox-000001.tar.gz",
        "00001-a-fox-000001-again2.tar.gz",
        "00001-a-fox-000001-again3.tar.gz",
    ]
    assert list(files(folder).values()) != []
    assert {files(folder)[name] for name in names} == {"render 1", "render 2", "render 3"}


def test_media_types_go_by_the_ending() -> None:
    assert media_type("a.MP4") == "video/mp4"
    assert media_type("a.webp") == "image/webp"
    assert media_type("a.unheard-of") == "application/octet-stream"


# -- finishing ----------------------------------------------------------------------------


def test_outputs_tell_size_and_hash_of_what_was_written(folder: OutputFolder) -> None:
    job = job_of()
    _, (output,) = folder.finish(job, make(folder, job, "a clip"), "null")
    assert (output.job, output.fence, output.size) == (1, 1, 6)
    assert output.sha256 == hashlib.sha256(b"a clip").hexdigest()
    assert output.media_type == "video/mp4"
    assert folder.resolve(output.path).read_text() == "a clip"
    assert list((folder.root / ".part").iterdir()) == []


def test_a_file_of_the_users_own_stays_where_it_is(folder: OutputFolder, tmp_path: Path) -> None:
    mine = tmp_path / "mine.png"
    mine.write_text("png")
    inside = folder.root / "sub" / "kept.png"
    inside.parent.mkdir(parents=True)
    inside.write_text("png")
    _, outputs = folder.finish(job_of(), [Made(str(mine), None), Made(str(inside), None)], "null")
    assert [output.path for output in outputs] == [str(mine), str(Path("sub", "kept.png"))]
    assert [folder.resolve(output.path) for output in outputs] == [mine, inside]


def test_a_missing_file_finishes_nothing(folder: OutputFolder) -> None:
    job = job_of()
    made = make(folder, job)
    gone = Made(str(folder.root / ".part" / "gone.mp4"), "gone.mp4")
    with pytest.raises(FileNotFoundError):
        folder.finish(job, [*made, gone], "null")
    assert files(folder) == {}
    assert folder.recover(job) is None


# -- after a crash ------------------------------------------------------------------------


def crash(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch, job: Job, *texts: str
) -> list[str]:
    """Returns the names of files that were to be; the process ended between manifest and rename."""
    made = []
    for n, text in enumerate(texts, 1):
        path, name = folder.part(job, ".mp4", n)
        path.write_text(text)
        made.append(Made(str(path), name))
    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, "_move", lambda self, moves: None)
        folder.finish(job, made, '{"took":3}')
    return [str(file.name) for file in made]


def test_a_manifest_finishes_the_job_without_its_handler(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of()
    names = crash(folder, monkeypatch, job, "one", "two")
    assert files(folder) == {}
    recovered = folder.recover(job)
    assert recovered is not None
    result_json, outputs = recovered
    assert json.loads(result_json) == {"took": 3}
    assert [output.path for output in outputs] == names
    assert files(folder) == dict(zip(names, ["one", "two"], strict=True))
    assert folder.recover(job) == recovered  # a crash of the recovery itself
    folder.forget(job.id, job.fence)
    assert folder.recover(job) is None


def test_a_crash_between_two_renames_is_completed(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of()
    first, _ = crash(folder, monkeypatch, job, "one", "two")
    (folder.root / ".part" / f"{job.id}.1.1.mp4").replace(folder.root / first)
    assert folder.recover(job) is not None
    assert sorted(files(folder).values()) == ["one", "two"]


@pytest.mark.parametrize("harm", ["missing", "changed", "shorter", "emptied"])
def test_a_file_that_is_not_what_was_made_finishes_nothing(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    job = job_of()
    crash(folder, monkeypatch, job, "one", "two")
    second = folder.root / ".part" / f"{job.id}.1.2.mp4"
    if harm == "missing":
        second.unlink()
    else:
        second.write_text({"changed": "owt", "shorter": "tw", "emptied": ""}[harm])
    assert folder.recover(job) is None
    assert files(folder) == {}


def test_a_torn_or_foreign_manifest_finishes_nothing(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of()
    crash(folder, monkeypatch, job, "one")
    manifest = folder.manifests / f"{job.id}.1.json"
    whole = manifest.read_text()
    for torn in (
        whole[:-1],
        whole[: len(whole) // 2],
        "",
        "[]",
        "{}",
        '{"outputs": [[1]]}',
        "null",
    ):
        manifest.write_text(torn)
        assert folder.recover(job) is None, torn
    manifest.write_bytes(b"\xff\xfe\x00")
    assert folder.recover(job) is None


def test_only_the_attempts_own_manifest_counts(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash(folder, monkeypatch, job_of(fence=1), "of an older attempt")
    assert folder.recover(job_of(fence=2)) is None
    assert folder.recover(job_of(number=2)) is None


# -- sweeping -----------------------------------------------------------------------------


def test_parts_and_manifests_nobody_holds_are_swept(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, gone = job_of(number=1), job_of(number=2)
    crash(folder, monkeypatch, held, "held")
    crash(folder, monkeypatch, gone, "gone")
    older = job_of(number=1, fence=7)
    make(folder, older, "of another attempt")
    stranger = folder.root / ".part" / "notes.of.mine"
    stranger.write_text("mine")
    kept = folder.root / "finished.of.mine.mp4"
    kept.write_text("mine")
    folder.sweep(lambda: {(held.id, 1)})
    parts = {path.name for path in (folder.root / ".part").iterdir()}
    assert parts == {f"{held.id}.1.1.mp4", "notes.of.mine"}
    assert [path.name for path in folder.manifests.iterdir()] == [f"{held.id}.1.json"]
    assert kept.exists()
    assert folder.recover(held) is not None


def test_a_sweep_where_nothing_was_ever_made_is_harmless(folder: OutputFolder) -> None:
    folder.sweep(lambda: ())
    folder.forget("nobody", 1)
    folder.discard_parts("nobody", 1)
    assert not folder.root.exists()


def test_the_parts_of_an_attempt_that_is_over_are_discarded(folder: OutputFolder) -> None:
    make(folder, job_of(fence=1))
    make(folder, job_of(fence=11))
    folder.discard_parts(job_of().id, 1)
    assert [path.name for path in (folder.root / ".part").iterdir()] == ["id000001.11.1.mp4"]
