"""
Write tests/data/syne_tune_promotion.json: which trials Syne Tune 0.13 promotes for random reports.

Later versions of Syne Tune have no ASHA by promotion. Version 0.13 needs numpy before 1.27, so run
this file in a separate environment: `pip install syne-tune==0.13.0 'numpy<1.27'`.

All rungs have the quantile 1/eta, as in ASHA's paper. The quantile of Syne Tune's own scheduler is
a milestone divided by the next milestone (by max_t at the last rung), which need not be 1/eta at
the last rung.

At each rung, the cutoff is compared with the best value of the trials that were not promoted. A
sequence is left out if at some rung these two differ, but only by a rounding error.
"""

import json
import random
from pathlib import Path

from syne_tune.optimizer.schedulers.hyperband_promotion import PromotionRungSystem

TARGET = Path(__file__).parents[2] / "tests" / "data" / "syne_tune_promotion.json"

SEQUENCES = 320
EVENTS = 40


class Rounded(Exception):
    """A value and a cutoff differ only by a rounding error of the cutoff."""


class Checked(PromotionRungSystem):
    def _find_promotable_trial(self, rung):
        cutoff = rung.quantile()
        best = next((one.metric_val for one in rung.data if not one.was_promoted), None)
        if None not in (cutoff, best) and best != cutoff and abs(best - cutoff) < 1e-9:
            raise Rounded
        return super()._find_promotable_trial(rung)


def sequence(seed):
    """
    Return a case: ASHA's options, the mode, and events.

    The event [trial] says that a free worker starts this trial, or resumes this trial because Syne
    Tune chose it. The event [trial, milestone, value] says that the trial reports the value at the
    milestone, and pauses, or ends if the milestone is max_t.
    """
    rng = random.Random(seed)
    eta, grace = rng.choice([2, 3, 4]), rng.choice([1, 2])
    max_t = grace * eta ** rng.choice([2, 3])
    mode = rng.choice(["min", "max"])
    levels = [grace * eta**k for k in range(10) if grace * eta**k < max_t]
    oracle = Checked(levels, [1 / eta] * len(levels), "loss", mode, "step", max_t)
    values = [k / 4 for k in range(-8, 9)] if rng.random() < 0.5 else None  # with ties
    running: dict[str, int] = {}
    reached: dict[str, int] = {}
    events = []
    n_trials = 0
    workers = rng.choice([1, 2, 5])
    while len(events) < EVENTS:
        if len(running) < workers and (not running or rng.random() < 0.5):
            found = oracle.on_task_schedule(str(n_trials))
            if found:
                trial = found.pop("trial_id")
                oracle.on_task_add(trial, 0, new_config=False, **found)
            else:
                trial, n_trials = str(n_trials), n_trials + 1
                oracle.on_task_add(trial, 0, new_config=True)
            running[trial] = reached.get(trial, 0)
            events.append([int(trial)])
            continue
        trial = rng.choice(sorted(running))
        milestone = oracle._running[trial]["milestone"]  # noqa: SLF001  there is no other access
        value = rng.choice(values) if values else round(rng.uniform(-1, 1), 6)
        oracle.on_task_report(trial, {"loss": value, "step": milestone}, 0)
        reached[trial] = milestone
        oracle.on_task_remove(trial)
        del running[trial]
        events.append([int(trial), milestone, value])
    options = {"max_t": max_t, "grace_period": grace, "reduction_factor": eta}
    return {"options": options, "mode": mode, "events": events}


def main():
    cases, seed = [], 0
    while len(cases) < SEQUENCES:
        seed += 1
        try:
            cases.append(sequence(seed))
        except Rounded:
            continue
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    TARGET.write_text(f"[\n{lines}\n]\n")
    print(f"{len(cases)} sequences of {seed} tried; {TARGET}")


if __name__ == "__main__":
    main()
