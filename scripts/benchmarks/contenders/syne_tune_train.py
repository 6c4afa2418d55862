"""The script that Syne Tune starts for each trial."""

from argparse import ArgumentParser

from benchmarks.contenders.task import METRIC, SPACE, epochs_of


def main() -> None:
    from syne_tune import Reporter  # noqa: PLC0415  syne_tune_side sets SYNETUNE_FOLDER after it has imported this file

    parser = ArgumentParser()
    parser.add_argument("--epochs", type=int)
    for name, (kind, _, _) in SPACE.items():
        parser.add_argument(f"--{name}", type=int if kind == "lograndint" else float)
    arguments, _ = parser.parse_known_args()
    config = {name: getattr(arguments, name) for name in SPACE}
    report = Reporter()
    for epoch, error in epochs_of(config, arguments.epochs):
        report(**{"epoch": epoch, METRIC: float(error)})


if __name__ == "__main__":
    main()
