"""
Workers of two users and two databases share the devices of a host, and are killed.

The trials record when they start and end. According to these records, the parts of a card that
trials hold at the same time never sum to more than 1, and each card is used again after the last
kill. With `STUDYDB_NIGHTLY=1`, the test kills 100 workers instead of 3.
"""

import json
import os
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleet.host_users import HostUser, other_uid
from fleet.workers import Fleet, eventually
from harness.fake_nvidia_smi import UUIDS, FakeNvidiaSmi

import studydb
from studydb.devices import Devices

NIGHTLY = bool(os.environ.get("STUDYDB_NIGHTLY"))
KILLS = 100 if NIGHTLY else 3
START_S = 120.0
LEASE_S = 5

CREATE = (
    *("create", "staged", "--trainable", "witnessing:train", "--metric", "loss", "--mode", "min"),
    *("--num-trials", "1000000", "--param", "seconds=uniform(0.02,0.4)", "--max-losses", "10000"),
)
WORK = ("worker", "--study", "staged", "--wait", "--lease", str(LEASE_S))


@dataclass(frozen=True)
class Span:
    """
    When a trial held a card or a part of the card.

    Attributes:
        end_s: The trial's last recorded time.
        was_second: Whether the trial has met a conflicting lock of another trial.
    """

    mark: str
    visible: str
    card: str
    part: float
    start_s: float
    end_s: float
    was_second: bool


class Place:
    """A study of a user, and one of the study's workers, which the test kills and replaces."""

    def __init__(self, stack, user, storage, folder, *, slots=2, part=1.0, entries=None):
        self.user, self.folder, self.slots, self.kills = user, folder, slots, 0
        logs = Path(tempfile.mkdtemp(dir=folder, prefix="logs-"))
        logs.chmod(0o755)
        self.fleet = stack.enter_context(Fleet(storage, "staged", logs))
        self.environment = {
            **FakeNvidiaSmi(folder).environment,
            "STUDYDB_STORAGE": storage,
            "STUDYDB_LOCK_DIR": str(folder),
            "WITNESS_FOLDER": str(folder),
            "WITNESS_PART": str(part),
            **({} if entries is None else {"CUDA_VISIBLE_DEVICES": entries}),
        }
        self.worker = None

    def start(self):
        options = (*WORK, "--slots", str(self.slots))
        self.worker = self.user.start(self.fleet, *options, environment=self.environment)

    def has_worked(self):
        """Tell whether the worker has started a trial."""
        assert self.worker.runs, self.worker.output()
        return any((self.folder / "held").glob(f"{self.worker.mark}-*"))

    def replace(self):
        """Kill the supervisor, or every other time the whole worker; start another worker."""
        self.kills += 1
        (self.worker.kill if self.kills % 2 else self.worker.end)()
        self.start()


@pytest.fixture
def folder():
    """A folder in which every user may write. For each card it has a file, which trials lock."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        for each in (folder, folder / "held"):
            each.mkdir(exist_ok=True)
            each.chmod(0o1777)
        for name in ("GPU-aa", "GPU-bb", "GPU-cc", "GPU-dd"):
            (folder / f"witness-{name}").touch()
            (folder / f"witness-{name}").chmod(0o666)
        yield folder


def spans(folder):
    found = []
    for path in sorted((folder / "held").iterdir()):
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        if not lines:
            continue
        for entry in lines[0]["visible"].split(","):
            (card,) = (uuid for uuid in UUIDS if uuid.startswith(entry))
            visible, part, times = (
                lines[0]["visible"],
                lines[0]["part"],
                [one["at"] for one in lines],
            )
            was_second = any("twice" in line for line in lines)
            mark = path.name.partition("-")[0]
            found.append(Span(mark, visible, card, part, min(times), max(times), was_second))
    return found


def starts_over_a_whole_card(found):
    """Return card and time of each trial's start at which the held parts sum to more than 1."""
    return [
        (card, span.start_s)
        for card in UUIDS
        for span in found
        if span.card == card
        and sum(
            one.part
            for one in found
            if one.card == card and one.start_s <= span.start_s < one.end_s
        )
        > 1
    ]


@pytest.mark.nightly
@pytest.mark.timeout(2400 if NIGHTLY else 300)
def test_trials_hold_no_more_than_a_whole_card_and_no_card_is_lost_although_workers_are_killed(
    folder, sqlite_template, postgres_url
):
    own, other = HostUser(folder), HostUser(folder, other_uid() or os.getuid())
    of_other = f"sqlite:///{other.folder}/b.db"
    shutil.copyfile(sqlite_template, other.folder / "b.db")
    shutil.chown(other.folder / "b.db", user=other_uid() or os.getuid())
    begin_s = time.monotonic()

    with ExitStack() as stack:
        of_entries = Place(stack, own, postgres_url, folder, entries="GPU-aa,GPU-bb")
        of_all = Place(stack, own, postgres_url, folder, slots=3)
        of_halves = Place(stack, other, of_other, folder, part=0.5)
        own.run(*CREATE, "--resources", "gpus=1", environment=of_all.environment)
        other.run(*CREATE, "--resources", "gpus=0.5", environment=of_halves.environment)
        with closing(studydb.load_study("staged", storage=postgres_url)) as study:
            for _ in range(50):
                study.enqueue({"seconds": 0.1}, resources={"gpus": 2})
        of_entries.start()
        eventually(lambda: len(spans(folder)) >= 4, START_S, what="the first trials")
        assert {span.visible for span in spans(folder)} == {"GPU-aa,GPU-bb"}

        places = [of_entries, of_all, of_halves]
        of_all.start()
        of_halves.start()
        eventually(lambda: of_all.has_worked() and of_halves.has_worked(), START_S, what="trials")
        for _ in range(KILLS):
            at_work = eventually(lambda: working(places), START_S, what="a trial")
            time.sleep(random.uniform(0.0, 0.3))
            random.choice(at_work).replace()
        after_s = time.monotonic()
        eventually(
            lambda: used_after(folder, after_s) == set(UUIDS), START_S, what="use of each card"
        )

    found = spans(folder)
    seen = {
        visible: sum(span.visible == visible for span in found)
        for visible in sorted({span.visible for span in found})
    }
    sys.stdout.write(
        f"{KILLS} kills ({[place.kills for place in places]}) in "
        f"{time.monotonic() - begin_s:.0f} s, {len(found)} uses of a card, {seen}\n"
    )
    assert [span for span in found if span.was_second] == []
    assert starts_over_a_whole_card(found) == []
    given = {"CUDA_VISIBLE_DEVICES": ",".join(UUIDS), "STUDYDB_LOCK_DIR": str(folder)}
    assert eventually(lambda: Devices.of("auto", given).take(len(UUIDS)), what="all cards free")
    assert min(place.kills for place in places) > 0 or not NIGHTLY


def working(places):
    """The places whose worker has started a trial; other workers may still wait for a card."""
    return [place for place in places if place.has_worked()]


def used_after(folder, after_s):
    return {span.card for span in spans(folder) if span.start_s > after_s}
