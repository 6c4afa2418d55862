"""
Write tests/data/syne_tune_promotion.json: what Syne Tune 0.13 promotes, on random sequences.

Later versions of Syne Tune have no ASHA by promotion. Version 0.13 needs numpy before 1.27, so run
this in an environment of its own: `pip install syne-tune==0.13.0 'numpy<1.27'`.

All rungs have the quantile 1/eta, as in the paper. Syne Tune's own scheduler uses the ratio of a
milestone to the next one; at the last rung this is 1/eta only if max_t is the next milestone.
Sequences are left out in which the rounding of an interpolated cutoff (g * a + (1 - g) * b with
a = b) makes a decision.
"""

import json
import random
from pathlib import Path

from syne_tune.optimizer.schedulers.hyperband_promotion import PromotionRungSystem

TARGET = Path(__file__).parents[2] / "tests" / "data" / "syne_tune_promotion.json"

SEQUENCES = 320
EVENTS = 40


class Rounded(Exception):
    """The rounding of a cutoff would make a decision."""


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

    An event is [trial] if a free worker starts a trial or resumes the one that Syne Tune chose, and
    [trial, milestone, value] if the trial reports there and pauses.
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
