"""The command line, as a person and as a script meet it."""

import csv
import fcntl
import json
import os
import queue as queues
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import openpyxl
import pytest
from click.testing import CliRunner
from rich.console import Console

from vqkit import GiveUp, Queue, cli, doctor
from vqkit.lifecycle import VERBS
from vqkit.queue.held import builtin_providers
from vqkit.words import EVENTS, event_words

DEADLINE_S = 40
VQKIT = [sys.executable, "-m", "vqkit"]
SMALL = {"seconds": "0.5", "width": "64", "height": "64"}
SLOW = {"seconds": "10", "width": "320", "height": "180", "fps": "30"}
ENDLESS = {"seconds": "10", "width": "1280", "height": "1280", "fps": "30"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sheet(name, prompts, settings=SMALL):
    with Path(name).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["prompt", *settings])
        writer.writerows([prompt, *settings.values()] for prompt in prompts)
    return name


def call(*words, code=0):
    """What a command prints, as one text; `code` is the exit status it must have."""
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def stdout_of(*words, code=0):
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stdout


class Running:
    """A vqkit process of its own, whose lines can be waited for."""

    def __init__(self, *words, **options):
        self.process = subprocess.Popen(
            [*VQKIT, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )
        self.text = ""
        self._lines = queues.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def until(self, pattern):
        """Waits for a line that holds the pattern; returns it."""
        end_s = time.monotonic() + DEADLINE_S
        while (line := self._lines.get(timeout=max(0.1, end_s - time.monotonic()))) is not None:
            self.text += line
            if re.search(pattern, line):
                return line
        raise AssertionError(f"{pattern!r} never came:\n{self.text}")

    def ended(self):
        """Waits for the end; the exit status."""
        while (line := self._lines.get(timeout=DEADLINE_S)) is not None:
            self.text += line
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def foxes(here):
    """A queue in ``runs/``: jobs 1 to 3 completed, 4 failed, 5 cancelled."""

    async def render(job):
        if job.payload["prompt"] == "bad":
            raise GiveUp("no fox in it")
        with job.output(".txt") as path:
            path.write_text(job.payload["prompt"])

    with Queue("runs/foxes.db") as q:
        source = sheet(
            "foxes.csv", ["a fox", "two foxes", "three \x1b[31mfoxes", "bad", "later"], {}
        )
        q.load(source)
        q.cancel(5)
        q.run(render)
    return Path("runs/foxes.db")


# -- run ---------------------------------------------------------------------------------------


def test_a_sheet_becomes_finished_clips_and_running_it_again_adds_nothing():
    rows = "a fox,.5,64,64,\nan owl,.5,64,64,2\na cat,.5,64,64,high\n"
    Path("foxes.csv").write_text("prompt,seconds,width,height,priority\n" + rows)
    with Running("run", "foxes.csv") as first:
        assert first.ended() == 0
    clips = sorted(Path("runs/foxes").glob("0*"))
    assert len(clips) == 2
    assert "2 jobs, all new" in first.text
    assert "Skipped, for it cannot run: 1 row\n  row 4: priority is 'high'" in first.text
    assert "2 of 2 completed" in first.text
    assert all(str(clip) in first.text for clip in clips)
    before = [clip.stat().st_ino for clip in clips]

    again = subprocess.run(
        [*VQKIT, "run", "foxes.csv", "--json"], capture_output=True, text=True, check=False
    )
    assert again.returncode == 0
    told = json.loads(again.stdout)
    assert told["complete"] is True
    assert told["added"] == {"new": 0, "existing": 2, "changed": 0}
    assert [Path(file).stat().st_ino for file in told["files"]] == before
    assert told["skipped"][0]["row"] == 4
    assert "Read foxes.csv" in again.stderr


def test_failed_jobs_are_listed_with_row_and_reason_and_the_exit_status_is_1():
    sheet("foxes.csv", ["a fox"], {**SMALL, "format": "avi"})
    told = call("run", "foxes.csv", code=1)
    assert "0 of 1 completed, 1 failed" in told
    assert re.search(r"job 1 \(foxes\.csv, row 2\): GiveUp: format is 'avi'", told)
    assert "vqkit requeue runs/foxes.db" in told
    assert "1 job put back" in call("requeue")
    assert call("run", "foxes.csv", code=1).count("job 1") == 1


def test_where_no_row_can_run_nothing_is_claimed_to_be_done():
    Path("foxes.csv").write_text("prompt,priority\na fox,high\n")
    told = call("run", "foxes.csv", code=1)
    assert "row 2: priority is 'high'" in told
    assert "Nothing to run" in told


def test_of_many_skipped_rows_ten_are_shown():
    Path("foxes.csv").write_text("prompt,priority\n" + "a fox,high\n" * 13)
    told = call("run", "foxes.csv", code=1)
    assert told.count("priority is 'high'") == 10
    assert "and 3 more" in told


def test_ctrl_c_finishes_what_is_at_work_and_begins_nothing_new():
    sheet("foxes.csv", "abcdef", SLOW)
    with Running("run", "foxes.csv", "--accounts", "1", "--capacity", "1") as run:
        run.until("1 running")
        run.process.send_signal(signal.SIGINT)
        assert "finishing 1 job" in run.until("Stopping")
        assert run.ended() == 130
    assert "To go on: vqkit run foxes.csv" in run.text
    counts = json.loads(stdout_of("status", "--json"))["counts"]
    assert counts["running"] == counts["failed"] == 0
    assert counts["completed"] >= 1
    assert counts["queued"] >= 1
    assert "given back" not in call("events", "--after", "0")


def test_after_the_grace_what_is_at_work_is_put_back_and_no_attempt_spent(monkeypatch):
    sheet("foxes.csv", ["a fox"], ENDLESS)
    code = "import vqkit.cli as c; c.GRACE_S = 0.1; c.main()"
    with Running.__new__(Running) as run:
        monkeypatch.setattr(sys.modules[__name__], "VQKIT", [sys.executable, "-c", code])
        run.__init__("run", "foxes.csv")
        run.until("1 running")
        run.process.send_signal(signal.SIGTERM)
        run.until("put back")
        assert run.ended() == 128 + signal.SIGTERM
    [job] = json.loads(stdout_of("jobs", "--json"))
    assert (job["status"], job["attempt"], job["crashes"]) == ("queued", 0, 0)


def test_a_second_ctrl_c_ends_at_once_and_the_next_run_recovers():
    sheet("foxes.csv", ["a fox", "an owl"], ENDLESS)
    with Running("run", "foxes.csv") as run:
        run.until("2 running")
        run.process.send_signal(signal.SIGINT)
        run.until("again to stop at once")
        run.process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        assert run.ended() == 130
        assert time.monotonic() - began_s < 5
    assert "Stopped at once" in run.text
    assert "Traceback" not in run.text
    assert "what it had at work is taken up" in call("status")
    with Running("run", "foxes.csv") as again:
        again.until("Recovered from the last run: 2 requeued")
        again.process.kill()
        again.ended()


def test_killed_at_work_and_run_again_every_row_is_finished_once():
    sheet("foxes.csv", "abc", SLOW)
    with Running("run", "foxes.csv", "--accounts", "1", "--capacity", "1") as run:
        run.until("1 running")
        run.process.kill()
        assert run.ended() == -signal.SIGKILL
    with Running("run", "foxes.csv", "--accounts", "3", "--capacity", "1") as again:
        assert again.ended() == 0
    assert "Recovered from the last run: " in again.text
    assert "3 of 3 completed" in again.text
    assert len(list(Path("runs/foxes").glob("0*"))) == 3
    told = call("events", "--after", "0")
    assert "put back: the process that ran it died" in told
    assert told.count("completed in") == 3


def test_a_run_goes_on_when_nobody_reads_what_it_says():
    sheet("foxes.csv", ["a fox", "an owl"])
    line = f"{' '.join(VQKIT)} run foxes.csv | head -1; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["Read foxes.csv: 2 jobs, all new.", "0"]
    assert ran.stderr == ""
    assert len(list(Path("runs/foxes").glob("0*"))) == 2


def test_other_numbers_of_accounts_change_them_and_no_numbers_keep_them():
    def accounts():
        with Queue("q.db") as q:
            return {a.name: (a.capacity, a.is_enabled) for a in q.accounts}

    Path("foxes.csv").write_text("prompt,priority\na fox,high\n")
    run = ("run", "foxes.csv", "--db", "q.db")
    call(*run, "--accounts", 3, "--capacity", 1, code=1)
    assert accounts() == {f"local-{i}": (1, True) for i in (1, 2, 3)}
    call(*run, "--accounts", 1, "--capacity", 4, code=1)
    assert accounts() == {"local-1": (4, True), "local-2": (1, False), "local-3": (1, False)}
    call(*run, code=1)
    assert accounts()["local-1"] == (4, True)
    call(*run, "--capacity", 2, code=1)
    assert accounts() == {"local-1": (2, True), "local-2": (1, False), "local-3": (1, False)}
    call(*run, "--accounts", 2, code=1)
    assert accounts()["local-2"] == (1, True)
    with Queue("q.db") as q:
        before = len(q.events())
    call(*run, "--accounts", 2, code=1)
    with Queue("q.db") as q:
        assert len(q.events()) == before


def test_db_and_out_say_where_things_go():
    sheet("foxes.csv", ["a fox"])
    told = call("run", "foxes.csv", "--db", "mine/q.db", "--out", "clips")
    [clip] = Path("clips").glob("0*")
    assert f"  {clip}" in told
    assert "keeps its finished files in clips" in call(
        "run", "foxes.csv", "--db", "mine/q.db", "--out", "elsewhere", code=2
    )
    assert call("run", "foxes.csv", "--db", "mine/q.db").count(str(clip)) == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["foxes.csv", "--provider", "runwy"], "no provider named 'runwy'; known here: local"),
        (["foxes.csv", "--capacity", "0"], "--capacity 0: expected 1 to 10,000"),
        (["foxes.csv", "--accounts", "-1"], "--accounts -1: expected 1 to 1,000"),
        (["foxs.csv"], "there is no file foxs.csv. Did you mean foxes.csv?"),
        (["foxes.csv", "--sheet", "One"], "has no sheets"),
        (["empty.csv"], "empty.csv is empty"),
        (["foxes.csv", "--db", "postgresql://x/y"], "this version keeps queues in SQLite files"),
        (["foxes.csv", "--frobnicate"], "No such option"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_exit_status_2_and_nothing_made(here, words, said):
    sheet("foxes.csv", ["a fox"])
    Path("empty.csv").touch()
    before = sorted(here.iterdir())
    told = call("run", *words, code=2)
    assert said in told
    assert "Traceback" not in told
    assert sorted(here.iterdir()) == before


def test_the_providers_named_are_those_that_are_built_in():
    assert set(cli.PROVIDERS) == builtin_providers().keys()


def test_run_draws_no_toys_in_a_queue_of_the_users_own_function(foxes):
    before = len(list(Path("runs/foxes").iterdir()))
    told = call("requeue")
    assert (
        "1 job put back: q.run(…) in your notebook or script, where render is, makes them" in told
    )
    assert "q.run(…), where render is defined, goes on" in call("status")
    told = call("run", "foxes.csv", code=2)
    assert "runs/foxes.db is a queue of your own render, and 1 job waits for it" in told
    assert "to have it all the same: --provider local" in told
    assert "leaves this queue alone, without --provider local" in call("plan", "foxes.csv")
    with Queue(foxes) as q:
        assert [a.name for a in q.accounts] == ["render"]
        assert q.job(4).status == "queued"
    assert len(list(Path("runs/foxes").iterdir())) == before
    assert "4 of 5 completed" in call("run", "foxes.csv", "--provider", "local", code=1)


def test_run_draws_no_toys_for_jobs_a_notebook_put_and_gave_no_account_yet():
    source = sheet("foxes.csv", ["a fox"])
    with Queue("runs/foxes.db") as q:
        q.load(source)
    assert "is a queue filled from Python, and 1 job waits for it: q.run(…)" in call(
        "run", "foxes.csv", code=2
    )
    assert "q.run(…) goes on" in call("status")
    assert "1 of 1 completed" in call("run", "foxes.csv", "--provider", "local")


def test_what_vqkit_run_began_goes_on_with_the_users_function_alone():
    sheet("foxes.csv", ["a fox"])
    assert "q.run() or vqkit run" not in call("run", "foxes.csv")

    def render(job):
        return job.account

    with Queue("runs/foxes.db") as q:
        q.put_many([{"prompt": f"fox {i}", **SMALL} for i in range(12)])
        assert q.run(render).is_complete
        assert {job.account for job in q.jobs(batch=None)[1:]} == {"render"}


def test_a_paused_queue_is_resumed_and_that_is_said():
    with Queue("runs/foxes.db") as q:
        q.pause()
    sheet("foxes.csv", ["a fox"])
    assert "was paused; this run resumes it" in call("run", "foxes.csv")


def test_jobs_of_other_sheets_in_the_queue_are_mentioned(foxes):
    sheet("owls.csv", ["an owl"])
    with Queue(foxes) as q:
        q.requeue(1, 2)
    told = call("run", "owls.csv", "--db", foxes, "--provider", "local", code=1)
    assert "holds 2 other jobs too" in told
    assert "other job" not in call("run", "owls.csv", "--db", foxes, "--provider", "local", code=1)


def test_a_failed_job_whose_row_is_gone_can_be_forgotten(foxes):
    sheet("foxes.csv", ["a fox", "two foxes", "three \x1b[31mfoxes", "later"], {})
    with Queue(foxes) as q:
        q.load("foxes.csv")
    assert "1 job forgotten" in call("prune", foxes, 4)
    assert json.loads(stdout_of("status", "--json"))["counts"]["failed"] == 0
    assert "say which" in call("prune", foxes, code=2)


def test_a_completed_job_whose_row_is_still_there_is_forgotten_only_with_yes(foxes):
    told = call("prune", foxes, 1, code=2)
    assert "row 2 of job 1 is still in foxes.csv" in told
    assert "nothing was forgotten" in told
    assert "1 job forgotten" in call("prune", foxes, 1, "--yes")


def test_all_and_batch_leave_what_is_in_doubt(here):
    def render(job):
        def lost():
            raise TimeoutError

        job.once("submit", lost, paid=True)

    with Queue("runs/doubts.db") as q:
        q.put({"n": 1}, batch="foxes")
        q.run(render)
    for words in (["--all"], ["--batch", "foxes"]):
        assert "1 job in doubt left alone: vqkit resolve" in call("cancel", *words)
    assert json.loads(stdout_of("status", "--json"))["counts"]["in_doubt"] == 1


def test_what_a_process_that_is_gone_had_at_work_is_cancelled_at_once():
    sheet("foxes.csv", "abcdef", SLOW)
    with Running("run", "foxes.csv", "--accounts", "1", "--capacity", "1") as run:
        run.until("1 running")
        run.process.kill()
        run.ended()
    assert "leaked" not in run.text  # the worker's helpers clean up without a word
    told = call("cancel", "foxes.csv", "--all")
    assert "at work" not in told
    counts = json.loads(stdout_of("status", "foxes.csv", "--json"))["counts"]
    assert (counts["running"], counts["queued"]) == (0, 0)


# -- looking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "jobs", "events", "cancel", "requeue", "export"])
def test_no_command_makes_a_queue_that_is_not_there(here, command):
    more = {"cancel": ["1"], "export": ["r.csv"]}.get(command, [])
    assert "there is no queue none.db" in call(command, "none.db", *more, code=2)
    if command != "export":
        assert "there is no queue in runs/" in call(command, *more, code=2)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("command", ["status", "jobs", "events", "doctor"])
def test_looking_changes_nothing_and_waits_for_nobody(foxes, command):
    before = (foxes.read_bytes(), foxes.stat().st_mtime_ns)
    with Path("runs/foxes.db-vqkit/write.lock").open() as lock:
        if command != "doctor":
            fcntl.flock(lock, fcntl.LOCK_EX)
        call(command, foxes)
    assert (foxes.read_bytes(), foxes.stat().st_mtime_ns) == before


def test_the_only_queue_here_is_the_one_meant_and_of_several_none(foxes):
    assert "queue: runs/foxes.db" in call("status")
    Path("runs/owls.db").touch()
    told = call("status", code=2)
    assert "name one of them: runs/foxes.db, runs/owls.db" in told
    assert "3 of 5 done" in call("status", "foxes.csv")


@pytest.mark.parametrize("command", ["status", "jobs", "events", "doctor"])
def test_a_file_that_is_no_queue_is_said_to_be_none_and_left_alone(command):
    import sqlite3

    Path("text.db").write_text("not a database at all, " * 50)
    Path("empty.db").touch()
    other = sqlite3.connect("other.db")
    other.execute("CREATE TABLE t (x)")
    other.close()
    before = [Path(name).read_bytes() for name in ("text.db", "empty.db", "other.db")]
    assert "is not a database" in call(command, "text.db", code=1)
    assert "holds nothing yet" in call(command, "empty.db", code=1)
    assert "database of something else" in call(command, "other.db", code=1)
    assert [Path(name).read_bytes() for name in ("text.db", "empty.db", "other.db")] == before


def test_status_says_how_it_stands_and_what_failed(foxes):
    told = call("status")
    assert "3 of 5 done, 1 failed, 1 cancelled" in told
    assert "render" in told
    assert "job 4 (foxes.csv, row 5): GiveUp: no fox in it" in told
    counts = json.loads(stdout_of("status", "--json"))["counts"]
    assert counts["completed"] == 3


def test_jobs_lists_them_in_order_and_bounded(foxes):
    lines = call("jobs").splitlines()
    assert [line.split()[0] for line in lines if line.split()[0].isdigit()] == list("12345")
    assert "GiveUp: no fox in it" in call("jobs", "--status", "failed")
    newest = call("jobs", "--limit", 2)
    assert "two foxes" not in newest
    assert "the newest 2" in newest
    found = json.loads(stdout_of("jobs", "--json"))
    assert [job["number"] for job in found] == [1, 2, 3, 4, 5]
    assert Path(found[0]["files"][0]).read_text() == "a fox"
    assert json.loads(stdout_of("jobs", "--json", "--batch", "none")) == []
    assert "no jobs are running" in call("jobs", "--status", "running")


def test_the_list_of_jobs_keeps_its_numbers_on_a_narrow_terminal(foxes, monkeypatch):
    screen = Console(width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(cli, "_console", lambda: screen)
    sheet("long.csv", ["a very long prompt " * 20], {})
    with Queue(foxes) as q:
        q.load("long.csv")
    with screen.capture() as shown:
        call("jobs")
    lines = shown.get().splitlines()
    assert [line.split()[0] for line in lines] == ["job", *"123456"]
    assert lines[-1].split()[1] == "queued"
    assert all(len(line) <= 80 for line in lines)


def test_nothing_a_sheet_holds_can_steer_the_terminal(foxes):
    for words in (["jobs"], ["status"], ["events", "--after", "0"], ["jobs", "--json"]):
        assert "\x1b" not in call(*words)
    assert "three �[31mfoxes" in call("jobs")


def test_events_tell_the_story_in_words(foxes):
    told = call("events", "--job", "4")
    assert "put in (foxes.csv, row 5)" in told
    assert "begun on render, try 1" in told
    assert "failed: GiveUp: no fox in it" in told
    lines = stdout_of("events", "--json", "--after", "0").splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    assert ids == sorted(set(ids))
    later = stdout_of("events", "--json", "--after", ids[3]).splitlines()
    assert later == lines[4:]
    assert "no job 99" in call("events", "--job", "99", code=2)


def test_of_many_events_the_newest_are_shown(foxes, monkeypatch):
    monkeypatch.setattr(cli, "EVENTS_SHOWN", 2)
    monkeypatch.setattr(cli, "PAGE", 2)
    assert len(stdout_of("events").splitlines()) == 2
    everything = stdout_of("events", "--after", "0").splitlines()
    assert len(everything) > 10
    assert stdout_of("events").splitlines() == everything[-2:]


def test_every_kind_of_event_has_words():
    kinds = {rule.event for rule in VERBS.values()}
    assert kinds <= EVENTS.keys()
    for kind in EVENTS:
        assert "{" not in event_words(kind, {})
    assert event_words("job.reclaimed", {"delay_s": 0.0}).startswith("put back")
    assert event_words("job.reclaimed", {"seconds": 1.0}).startswith("completed")
    assert event_words("job.reclaimed", {"error": "Crashed"}).startswith("failed")
    assert event_words("job.new_kind", {"a": 1}) == "new kind {'a': 1}"


def test_following_shows_new_events_and_ends_at_ctrl_c(foxes):
    with Running("events", "--follow", "--after", "0") as following:
        following.until("job 4 .*failed")
        with Queue(foxes) as q:
            q.requeue(4)
        following.until("job 4 .*put back by you")
        following.process.send_signal(signal.SIGINT)
        assert following.ended() == 0
    assert "Traceback" not in following.text


def test_following_ends_when_the_file_is_gone(foxes):
    with Running("events", "--follow") as following:
        following.until("failed")
        foxes.unlink()
        following.until("error: .*foxes.db is gone")
        assert following.ended() == 1


# -- changing one's mind -------------------------------------------------------------------------


def test_cancel_and_requeue_take_jobs_by_number(foxes):
    assert "1 job put back" in call("requeue")
    assert json.loads(stdout_of("requeue", "5", "--json")) == {"changed": 1}
    told = call("cancel", foxes, 1, 4)
    assert "1 job cancelled" in told
    assert "job 1 is completed already" in told
    assert json.loads(stdout_of("cancel", "--all", "--json")) == {"changed": 1, "stopping": []}
    assert "nothing to cancel" in call("cancel", "--batch", "foxes.csv")
    assert "nothing to put back" in call("requeue")
    assert "2 jobs put back" in call("requeue", "--status", "cancelled")


def test_failed_jobs_whose_rows_are_gone_are_left_alone_and_forgotten_at_once(foxes):
    with Queue(foxes) as q:
        q.load(sheet("foxes.csv", ["a fox", "two foxes", "three \x1b[31mfoxes"], {}))
    told = call("requeue")
    assert "nothing to put back but jobs that no sheet has any more" in told
    assert "1 left: its row is gone from foxes.csv or was edited." in told
    assert json.loads(stdout_of("requeue", "--json")) == {"changed": 0, "left": 1}
    told = call("run", "foxes.csv", "--db", foxes, "--provider", "local")
    assert "Done: 3 of 5 completed, 1 failed, 1 cancelled" in told
    assert "1 cancelled and 1 failed do not count: their rows are gone or were edited." in told
    assert "2 jobs forgotten" in call("prune", "--gone")
    assert "say which" in call("prune", "--gone", "3", code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say which"),
        (["1", "--all"], "say which"),
        (["runs/foxes.db", "x"], "'x' is no job"),
        (["99"], "no job 99"),
    ],
)
def test_a_cancel_that_does_not_say_which_cancels_none(foxes, words, said):
    assert said in call("cancel", *words, code=2)


def test_export_saves_all_jobs(foxes):
    assert "5 jobs saved to r.csv" in call("export", foxes, "r.csv")
    assert len(Path("r.csv").read_text().splitlines()) == 6
    assert "5 jobs saved to r.csv" in call("export", foxes, "r.csv")
    Path("r.csv").write_text("mine")
    assert "--overwrite" in call("export", foxes, "r.csv", code=2)
    assert "5 jobs saved" in call("export", foxes, "r.csv", "--overwrite")
    assert "the sheet the jobs came from" in call("export", foxes, "foxes.csv", code=2)


def test_export_saves_beside_the_rows_of_the_workbook(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["prompt"])
    book.active.append(["a fox"])
    book.save("owls.xlsx")
    with Queue("owls.db") as q:
        q.load("owls.xlsx")
    words = ["export", "owls.db", "out.xlsx", "--into", "owls.xlsx", "--sheet", "Sheet"]
    assert "1 job saved to out.xlsx" in call(*words)
    assert openpyxl.load_workbook("out.xlsx").active["B2"].value == "queued"
    assert "--sheet goes with --into" in call("export", "owls.db", "o.csv", "--sheet", "x", code=2)


def test_a_closed_pipe_ends_a_list_without_a_word(foxes):
    line = f"{' '.join(VQKIT)} events --after 0 | head -1"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert len(ran.stdout.splitlines()) == 1
    assert ran.stderr == "queue: runs/foxes.db\n"


def test_an_unexpected_error_shows_where_it_happened(foxes, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "take", broken)
    with pytest.raises(ZeroDivisionError):
        call("status")


# -- doctor --------------------------------------------------------------------------------------


def levels(path=None):
    return {check.name: check for check in doctor.examine(path)}


def test_doctor_finds_nothing_wrong_with_a_sound_queue(foxes):
    assert {check.name for check in doctor.examine(foxes) if check.level == "problem"} == set()
    told = call("doctor")
    assert "whole, with a write-ahead log" in told
    checks = json.loads(stdout_of("doctor", "--json"))
    assert {check["level"] for check in checks} <= {"ok", "warning"}
    assert sorted(p.name for p in Path("runs").iterdir() if "doctor" in p.name) == []


def test_doctor_looks_at_the_machine_where_there_is_no_queue(here):
    assert "Only the machine was looked at" in call("doctor")
    assert list(here.iterdir()) == []


def test_doctor_sees_counters_that_are_wrong_and_files_that_are_gone(foxes):
    import sqlite3

    other = sqlite3.connect(foxes)
    other.execute("UPDATE counts SET n = n + 1 WHERE status = 'completed'")
    other.commit()
    other.close()
    next(Path("runs/foxes").glob("00001*")).unlink()
    found = levels(foxes)
    assert found["counters"].level == "warning"
    assert "1 of 3 finished files are not in" in found["files"].found


def test_doctor_names_whoever_keeps_others_from_writing(foxes, monkeypatch):
    monkeypatch.setattr(doctor, "LOCK_WAIT_S", 0.05)
    lock = Path("runs/foxes.db-vqkit/write.lock")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lock.write_text(f"{os.getpid():<10}\n")
        found = levels(foxes)["writing"]
    assert found.level == "problem"
    assert f"process {os.getpid()} keeps all others from writing" in found.found


def test_doctor_says_which_keys_are_missing_and_shows_none(foxes, monkeypatch):
    monkeypatch.setenv("FOX_KEY", "sk-very-secret")
    with Queue(foxes) as q:
        q.accounts.add("with", credential="env:FOX_KEY")
    assert levels(foxes)["keys"].found == "found for with (not shown)"
    monkeypatch.delenv("FOX_KEY")
    assert levels(foxes)["keys"].level == "problem"
    assert "FOX_KEY" in call("doctor", code=1)


def test_doctor_counts_the_jobs_of_a_process_that_is_gone(foxes):
    code = """if True:
        import os, signal
        from vqkit import Queue
        async def render(job):
            os.kill(os.getpid(), signal.SIGKILL)
        q = Queue("runs/foxes.db")
        q.requeue()
        q.run(render)
    """
    subprocess.run([sys.executable, "-c", code], check=False)
    found = levels(foxes)["at work"]
    assert found.level == "warning"
    assert "1 jobs were at work in a process that is gone" in found.found


def test_doctor_warns_of_a_full_disk_and_a_synced_folder(foxes, monkeypatch):
    monkeypatch.setattr(doctor, "free_bytes", lambda _: 1000)
    assert levels(foxes)["free room"].level == "problem"
    folder = Path("Dropbox")
    folder.mkdir()
    assert levels(folder / "q.db")["folder"].level == "problem"


@pytest.mark.parametrize(
    ("version", "has_it"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
    ],
)
def test_doctor_knows_which_sqlite_has_the_log_bug(version, has_it):
    assert doctor._has_wal_bug(version) is has_it


def test_a_doubt_is_ended_from_the_command_line(tmp_path, monkeypatch):
    def send(key):
        raise ConnectionError("lost")

    def work(job):
        return job.once("submit", send, paid=True)

    monkeypatch.chdir(tmp_path)
    with Queue("runs/doubts.db") as q:
        q.put_many([{"n": n} for n in range(3)])
        q.run(work)
    call = CliRunner().invoke
    told = call(cli.main, ["requeue", "runs/doubts.db", "1"]).output
    assert "job 1 is in doubt" in told
    assert "vqkit resolve" in told
    assert "which job" in call(cli.main, ["resolve", "1"]).output
    assert (
        "job 1 is failed now"
        in call(cli.main, ["resolve", "1", "give-up", "--cost", "0.31"]).output
    )
    attached = call(cli.main, ["resolve", "2", "attach", "--value", '{"id": 7}', "--json"])
    assert json.loads(attached.stdout) == {"job": 2, "status": "queued"}
    assert "expected 'attach'" in call(cli.main, ["resolve", "3", "sent"]).output


def test_plan_shows_what_run_would_do_and_makes_nothing():
    sheet("foxes.csv", ["a fox", "two foxes"], {**SMALL})
    told = call("plan", "foxes.csv")
    assert "foxes.csv: 2 jobs to put, all new" in told
    assert "vqkit run foxes.csv does this; nothing has been put yet" in told
    assert not Path("runs").exists()


def test_plan_compares_a_sheet_with_its_queue(foxes):
    sheet("foxes.csv", ["a fox", "two foxes", "an owl", "bad", "later"], {})
    before = foxes.read_bytes()
    told = call("plan", "foxes.csv")
    assert "1 job to put (1 changed), 4 the same" in told
    assert "2 completed, 1 failed, 1 cancelled" in told
    assert len(before) == len(foxes.read_bytes())


def test_of_many_files_those_just_made_are_listed_and_not_the_oldest(tmp_path):
    from vqkit.cli import _newest

    files = [tmp_path / f"{n:02}.mp4" for n in range(25)]
    for n, path in enumerate(files):
        path.touch()
        os.utime(path, (n, n))
    os.utime(files[3], (99, 99))  # an early job, made last
    (tmp_path / "00.mp4").unlink()
    assert _newest(files, 3) == [files[3], files[24], files[23]]
    assert _newest(files[:3], 3) == files[:3]


def test_export_needs_no_name_of_a_queue_where_there_is_one_only(foxes):
    assert "results.csv" in call("export", "results.csv")
    assert Path("results.csv").exists()
    assert "name the file to save" in call("export", foxes, code=2)
    assert "name the file to save" in call("export", code=2)
