"""Functions that parse `sys.argv`, which holds no arguments in a trial, or read `trial.config`."""

import argparse
import sys


def main(args=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    sys.stdout.write(f"argv {sys.argv}\n")
    return args.lr


def required(config):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    return parser.parse_args().lr


def reads_it_elsewhere(config, trial):
    trial.report({"loss": trial.config["x"]})
