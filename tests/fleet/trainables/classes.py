"""Class trainables for tests; `folder` in the config is the test's folder."""

import os
import signal
from pathlib import Path
from time import sleep

import studydb


class Counting(studydb.Trainable):
    """
    Counts steps, and saves the count as a dict; completes the trial at step `steps` (default 4).

    Each step after step `gate_after` (if set) waits for the file `gate-all`. The file `calls` lists
    the calls of all methods except `step`.
    """

    def setup(self, config):
        self.folder, self.count = Path(config["folder"]), 0
        self.note("setup")

    def note(self, text):
        with (self.folder / "calls").open("a") as file:
            file.write(f"{text}\n")

    def step(self):
        self.count += 1
        if (until := self.config.get("gate_after")) and self.count > until:
            while not (self.folder / "gate-all").exists():
                sleep(0.01)
        return {"loss": 1 / self.count, "done": self.count == self.config.get("steps", 4)}

    def save_checkpoint(self, directory):  # noqa: ARG002  the state is a dict
        self.note(f"save {self.count}")
        return {"count": self.count}

    def load_checkpoint(self, checkpoint):
        self.count = checkpoint["count"]
        self.note(f"load {self.count}")

    def cleanup(self):
        self.note("cleanup")


class InFiles(Counting):
    """Saves the count as a file, at every third step and at the last step."""

    checkpoint_every = 3

    def save_checkpoint(self, directory):
        self.note(f"save {self.count}")
        Path(directory, "count").write_text(str(self.count))

    def load_checkpoint(self, checkpoint):
        self.count = int(Path(checkpoint, "count").read_text())
        self.note(f"load {self.count}")


class EndsByNone(InFiles):
    """Ends its trial by returning None after the last step, and not by `done`."""

    def step(self):
        if self.count == 4:
            return None
        return {**super().step(), "done": False}


class WaitsAtItsEnd(Counting):
    """Waits for the gate after its last step is saved and before its trial ends."""

    def cleanup(self):
        super().cleanup()
        while not (self.folder / "gate-all").exists():
            sleep(0.01)


class KilledAtItsEnd(Counting):
    """Kills its process once, after the last step is saved and before the trial ends."""

    def cleanup(self):
        super().cleanup()
        if not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class EndsByNoneAndIsKilled(KilledAtItsEnd):
    def step(self):
        if self.count == 4:
            return None
        return {**super().step(), "done": False}


class Silent(Counting):
    def step(self):
        return None


class Failing(Counting):
    def step(self):
        raise ValueError("step failed")


class SavesTwice(Counting):
    """Its `save_checkpoint` returns a dict, and also writes a file into the directory."""

    def save_checkpoint(self, directory):
        Path(directory, "weights").touch()
        return super().save_checkpoint(directory)


class Wrong(Counting):
    def step(self):
        return 0.5


class Stepless(studydb.Trainable):
    def setup(self, config):
        pass


class Reused(Counting):
    """Can be reset for a further trial; each step writes the process's pid to the file `pids`."""

    def step(self):
        with (self.folder / "pids").open("a") as file:
            file.write(f"{os.getpid()}\n")
        return super().step()

    def reset_config(self, config):  # noqa: ARG002  the base class has set `self.config`
        self.count = 0
        self.note("reset")
        return True


class Refusing(Reused):
    """Cannot be reset for a second trial: its `reset_config` returns False."""

    def setup(self, config):
        super().setup(config)
        print("set up")  # noqa: T201  tests read the log

    def reset_config(self, config):  # noqa: ARG002
        self.note("refused")
        print("cannot be reset")  # noqa: T201
        return False

    def cleanup(self):
        self.note(f"cleanup after step {self.iteration}")


class Faulty(Reused):
    """Fails or is killed, as `fault` says, in the first attempt of the trial whose `x` is 1."""

    def step(self):
        seen = self.folder / "fault"
        if self.config["x"] == 1 and not seen.exists():
            seen.touch()
            if self.config["fault"] == "raise":
                raise ValueError("the second trial fails")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step()


class Patient(Reused):
    """In each step of the trial with `x` = 1, creates the file `second` and waits for the gate."""

    def step(self):
        if self.config["x"] == 1:
            (self.folder / "second").touch()
            while not (self.folder / "gate-all").exists():
                sleep(0.01)
        return super().step()
