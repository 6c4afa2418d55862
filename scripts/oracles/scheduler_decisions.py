"""
Write tests/data/scheduler_decisions.json: what Ray Tune's and Syne Tune's schedulers decide.

The cases are those of tests/harness/oracle_cases.py. tests/README.md says how to make
an environment with the extra `[oracle]`, which the script needs.
"""

import json
import sys
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from harness.oracle_cases import CASES  # noqa: E402  found by the line above

TARGET = ROOT / "tests" / "data" / "scheduler_decisions.json"
N_CASES = 60


def main():
    blocks = []
    for name, make in sorted(CASES.items()):
        cases = [make(Random(f"{name} {n}")) for n in range(N_CASES)]
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        blocks.append(f'"{name}": [\n{lines}\n]')
    TARGET.write_text("{\n" + ",\n".join(blocks) + "\n}\n")
    print(f"{len(blocks)} oracles with {N_CASES} cases each; {TARGET}")


if __name__ == "__main__":
    main()
