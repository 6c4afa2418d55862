"""`digits_softmax.train` as a program: digits_command.py --lr LR --folder FOLDER."""

import argparse

from digits_softmax import STEPS, Softmax

import studydb

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--folder")
given = parser.parse_args()
saved = studydb.checkpoint()
softmax = Softmax(given.folder, given.lr, saved.to_dict()["weights"] if saved else None)
for step in range(saved.step + 1 if saved else 1, STEPS + 1):
    studydb.report({"error": softmax.train(step)}, checkpoint={"weights": softmax.weights})
