"""What a handler is given, and how its errors point at the user's own line."""

from __future__ import annotations

import linecache
import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from executor_contract import BrokenStr, a_job

from vqkit import attempt, secrets
from vqkit.attempt import ActiveJob, describe_error, frames_of, plain_result
from vqkit.errors import CredentialError, JobCancelled, UsageError
from vqkit.outputs import Made, OutputFolder


class Recorder:
    """A channel that keeps what was posted."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.cancelled = False

    def post(self, verb: str, change: dict[str, Any]) -> None:
        self.told.append((verb, change))

    def is_cancelled(self) -> bool:
        return self.cancelled

    def resolve(self, reference: str) -> str:
        return secrets.resolve(reference)


@pytest.fixture
def channel() -> Recorder:
    return Recorder()


@pytest.fixture
def job(channel: Recorder, tmp_path: Path) -> ActiveJob:
    folder = OutputFolder(tmp_path / "out", tmp_path / "finished")
    return ActiveJob(a_job(7, 3, prompt="a fox"), channel, folder)


def raised(function: Callable[..., Any], *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:  # noqa: BLE001 - whatever the test raises
        return error
    raise AssertionError("nothing was raised")


# -- the job a handler sees ---------------------------------------------------------------


def test_a_job_shows_what_was_put(job: ActiveJob) -> None:
    assert (job.number, job.id, job.attempt, job.account, job.batch) == (
        7,
        "job7",
        1,
        "studio",
        None,
    )
    assert job.payload == {"prompt": "a fox"}
    job.payload["prompt"] = "changed"
    assert job.payload == {"prompt": "a fox"}
    assert repr(job) == '<job 7, attempt 1, {"prompt":"a fox"}>'


@pytest.mark.parametrize(
    ("progress", "kept"),
    [(None, None), (0.4, 0.4), (7, 1.0), (-1, 0.0), (math.nan, 0.0), (math.inf, 1.0)],
)
def test_progress_is_between_nothing_and_all(
    job: ActiveJob, channel: Recorder, progress: float | None, kept: float | None
) -> None:
    job.stage("rendering", progress)
    assert channel.told == [("stage", {"stage": "rendering", "progress": kept})]


def test_lines_are_bounded_in_length_and_number(job: ActiveJob, channel: Recorder) -> None:
    for n in range(300):
        job.log(f"{n} " + "x" * 5000)
    assert len(channel.told) == 201
    assert all(len(change["message"]) <= 2000 for _, change in channel.told)
    assert channel.told[-1][1] == {
        "message": "more than 200 lines; the rest is not kept",
        "level": "warning",
    }


def test_an_unknown_level_is_told_with_the_known_ones(job: ActiveJob) -> None:
    with pytest.raises(UsageError, match="log level 'fatal': expected debug, info, warning"):
        job.log("x", "fatal")


def test_check_cancelled_raises_once_the_user_asked(job: ActiveJob, channel: Recorder) -> None:
    job.check_cancelled()
    channel.cancelled = True
    with pytest.raises(JobCancelled):
        job.check_cancelled()


def test_a_key_is_resolved_only_for_an_account_that_has_one(
    job: ActiveJob, channel: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="account 'studio' has no credential"):
        job.credential()
    monkeypatch.delenv("VQKIT_NO_SUCH_KEY", raising=False)
    folder = OutputFolder(tmp_path, tmp_path)
    mine = ActiveJob(a_job(), channel, folder, "env:VQKIT_NO_SUCH_KEY")
    with pytest.raises(CredentialError, match="VQKIT_NO_SUCH_KEY is not set"):
        mine.credential()


def test_an_output_is_a_new_file_each_time(job: ActiveJob) -> None:
    with job.output(".mp4") as first:
        assert not first.exists()
        first.write_bytes(b"one")
    with job.output(".mp4") as second:
        second.write_bytes(b"two")
    assert first != second
    assert [made.name for made in job.made] == ["00007-a-fox-job7.mp4", "00007-a-fox-job7-2.mp4"]


@pytest.mark.parametrize("empty", [False, True])
def test_an_output_that_was_not_written_is_told(job: ActiveJob, empty: bool) -> None:
    def forget() -> None:
        with job.output(".mp4") as path:
            if empty:
                path.touch()

    with pytest.raises(
        UsageError, match=r"nothing was written to the file that job.output\('.mp4'\)"
    ):
        forget()
    assert job.made == []


def test_an_error_inside_output_is_the_error_that_is_told(job: ActiveJob) -> None:
    def fail() -> None:
        with job.output(".mp4"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert job.made == []


@pytest.mark.parametrize("suffix", ["mp4", ".", "../x", "/etc/passwd", ".a b", ".tar.gz.old.bak"])
def test_an_ending_that_is_none_is_refused(job: ActiveJob, suffix: str) -> None:
    def use() -> None:
        with job.output(suffix):
            pass

    with pytest.raises(ValueError, match="expected a file ending such as"):
        use()


# -- what it returns ----------------------------------------------------------------------


def test_paths_in_a_result_become_outputs_by_name(tmp_path: Path) -> None:
    made = [Made(str(tmp_path / "x.part"), "00001-a-fox.mp4")]
    mine = tmp_path / "mine.png"
    mine.write_bytes(b"png")
    value = {"clip": tmp_path / "x.part", "text": made[0].path, "all": [mine, ("deep", mine)]}
    result, files, warning = plain_result(value, made)
    assert warning is None
    assert result == {
        "clip": "00001-a-fox.mp4",
        "text": "00001-a-fox.mp4",
        "all": [str(mine), ["deep", str(mine)]],
    }
    assert files == [made[0], Made(str(mine), None)]


def test_a_path_that_is_no_file_is_only_text(tmp_path: Path) -> None:
    missing = tmp_path / "missing.mp4"
    assert plain_result([missing, tmp_path], []) == ([str(missing), str(tmp_path)], [], None)


def test_a_path_of_bytes_is_a_path(tmp_path: Path) -> None:
    class BytesPath:
        def __fspath__(self) -> bytes:
            return bytes(tmp_path / "mine.png")

    (tmp_path / "mine.png").write_bytes(b"png")
    result, files, _ = plain_result(BytesPath(), [])
    assert result == str(tmp_path / "mine.png")
    assert [file.path for file in files] == [result]


def test_what_raises_when_looked_at_costs_no_result(tmp_path: Path) -> None:
    class Hostile:
        def __fspath__(self) -> str:
            raise RuntimeError

        __repr__ = __fspath__

    made = [Made(str(tmp_path / "x"), "x.mp4")]
    result, files, warning = plain_result({"a": Hostile()}, made)
    assert result == {"repr": "(a dict that cannot be shown)"}
    assert files == made
    assert "RuntimeError" in str(warning)


# -- errors -------------------------------------------------------------------------------


def test_an_error_points_at_the_users_own_line_and_not_at_a_librarys() -> None:
    def handler() -> Any:
        import json

        return json.loads("{")  # the line a user looks for

    described = describe_error(raised(handler))
    assert described["type"] == "JSONDecodeError"
    assert described["line"].startswith("test_attempt.py, line ")
    assert described["line"].endswith(': return json.loads("{")  # the line a user looks for')
    assert "json/decoder.py" in described["traceback"]
    assert described["traceback"].startswith("Traceback (most recent call last):\n")


def test_vqkits_own_frames_are_left_out(job: ActiveJob) -> None:
    error = raised(job.log, "x", "fatal")
    assert error.__traceback__ is not None
    assert frames_of(error.with_traceback(error.__traceback__.tb_next)) == []


def test_a_folder_named_like_vqkits_is_not_vqkits() -> None:
    beside = attempt._PACKAGE.rstrip("/") + "_of_mine/handler.py"
    space: dict[str, Any] = {}
    exec(compile("def handler():\n    raise ValueError('mine')\n", beside, "exec"), space)
    error = raised(space["handler"])
    assert error.__traceback__ is not None
    assert frames_of(error.with_traceback(error.__traceback__.tb_next)) == [(beside, 2, "handler")]


@pytest.fixture
def cell() -> Iterator[types.SimpleNamespace]:
    """A notebook cell as ipykernel compiles one: a made-up file, its text in linecache."""
    name = "/tmp/ipykernel_4711/1234567.py"
    source = "def render(job):\n    size = job['size']\n    return 1 / size  # in the cell\n"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {}
    exec(compile(source, name, "exec"), space)
    yield types.SimpleNamespace(name=name, render=space["render"])
    del linecache.cache[name]


def test_an_error_in_a_cell_shows_the_cells_line(cell: Any) -> None:
    described = describe_error(raised(cell.render, {"size": 0}))
    assert described["line"] == "1234567.py, line 3: return 1 / size  # in the cell"
    assert "return 1 / size  # in the cell" in described["traceback"]


def test_a_cell_has_the_number_its_prompt_shows(cell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={cell.name: 3}))
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    described = describe_error(raised(cell.render, {"size": 0}))
    assert described["line"] == "In[3], line 3: return 1 / size  # in the cell"
    assert "  In[3], line 3, in render\n" in described["traceback"]


def test_frames_of_a_worker_are_shown_with_the_source_known_here(cell: Any) -> None:
    frames = [(cell.name, 3, "render")]
    described = describe_error(ZeroDivisionError("division by zero"), frames)
    assert described["line"] == "1234567.py, line 3: return 1 / size  # in the cell"


def test_code_without_source_still_has_its_line() -> None:
    space: dict[str, Any] = {}
    exec(compile("def handler():\n    raise KeyError('x')", "<string>", "exec"), space)
    described = describe_error(raised(space["handler"]))
    assert described["line"] == "<string>, line 2"
    assert describe_error(ValueError("never raised")) == {
        "type": "ValueError",
        "message": "never raised",
        "traceback": "ValueError: never raised\n",
    }


def test_causes_are_told_with_their_own_lines() -> None:
    def fetch() -> None:
        raise ConnectionError("refused")

    def handler() -> None:
        try:
            fetch()
        except ConnectionError as error:
            raise RuntimeError("no clip") from error

    def silent() -> None:
        try:
            fetch()
        except ConnectionError:
            raise RuntimeError("no clip") from None

    text = describe_error(raised(handler))["traceback"]
    assert text.index("RuntimeError: no clip") < text.index("because of")
    assert (
        text.index("because of") < text.index("in fetch") < text.index("ConnectionError: refused")
    )
    assert "because of" not in describe_error(raised(silent))["traceback"]


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert describe_error(first)["traceback"].count("because of") == 5


def test_the_parts_of_a_group_are_told_with_their_lines() -> None:
    def part() -> None:
        raise LookupError("inside the group")

    group = ExceptionGroup("two went wrong", [raised(part), ValueError("other")])  # type: ignore[list-item]
    described = describe_error(raised(_raise, group))
    assert described["message"] == "two went wrong (2 sub-exceptions)"
    assert 'raise LookupError("inside the group")' in described["traceback"]
    assert "ValueError: other" in described["traceback"]


def _raise(error: BaseException) -> None:
    raise error


def test_what_is_kept_of_an_error_is_bounded() -> None:
    def deep(n: int) -> Any:
        return deep(n + 1)

    huge = describe_error(raised(_raise, ValueError("x" * 1_000_000)))
    endless = describe_error(raised(deep, 0))
    for described in (huge, endless):
        assert len(described["message"]) < 2100
        assert len(described["traceback"]) < 8100
        assert len(described["line"]) < 400
    assert "characters left out" in huge["message"]
    assert endless["traceback"].endswith("maximum recursion depth exceeded\n")
    long = "x = 1; " * 500 + "raise ValueError"
    linecache.cache["<long>"] = (len(long), None, [long], "<long>")
    described = describe_error(raised(exec, compile(long, "<long>", "exec")))
    assert len(described["line"]) < 400
    del linecache.cache["<long>"]


def test_errors_that_cannot_be_shown_are_shown_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = describe_error(raised(_raise, BrokenStr()))
    assert described["message"] == "(its message cannot be shown: RuntimeError)"
    described = describe_error(raised(_raise, SyntaxError("odd", ("f", "x", (), 3))))  # type: ignore[arg-type]
    assert described["type"] == "SyntaxError"
    described = describe_error(raised(_raise, ValueError("half \ud800")))
    assert described["message"] == "half ?"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert describe_error(raised(_raise, ValueError("nowhere")))["message"] == "nowhere"


def test_keys_that_are_one_as_text_are_both_kept_and_told() -> None:
    result, _, warning = plain_result({"clip": {1: "a", "1": "b", 2: "c", "1 (int)": "d"}}, [])
    assert result == {"clip": {"1 (int) (int)": "a", "1": "b", "2": "c", "1 (int)": "d"}}
    assert warning is not None
    assert "result['clip'] has keys that are one as text; 1 is kept as '1 (int) (int)'" in warning
    assert plain_result({1: "a", 2: "b"}, [])[::2] == ({"1": "a", "2": "b"}, None)
