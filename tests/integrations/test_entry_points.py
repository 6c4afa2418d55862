"""A trainable is named by its import path, or by a name that an installed package offers."""

import os
import sys

import pytest
from fleet.preloaded import run_studydb

from studydb.operations.create import load
from studydb.settings import load_keyring
from studydb.trainables import check_trusted

OFFERED = """
[studydb.trainables]
digits = offering:train
quadratic = offering:square
whole = offering
dashed = off-ering:train
twice = offering:train
"""

CREATE = ("create", "mine", "--metric", "loss", "--mode", "min", "--num-trials", "1")


def install(folder, package, offered):
    """Write the metadata of an installed package, with its entry points, into a folder."""
    place = folder / f"{package}-1.0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (place / "entry_points.txt").write_text(offered)


@pytest.fixture
def offering(here, monkeypatch):
    """Two packages that offer trainables; only `offering` has code, in the working directory."""
    install(here, "offering", OFFERED)
    install(here / "other", "other", "[studydb.trainables]\ntwice = other:train\n")
    monkeypatch.setattr(sys, "path", [str(here), str(here / "other"), *sys.path])
    (here / "offering.py").write_text(
        "def train(config): return config['x']\ndef square(config): return config['x'] ** 2\n"
    )
    return here


@pytest.mark.row("D7")
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("digits", "offering:train"),
        ("quadratic", "offering:square"),
        ("offering:square", "offering:square"),
    ],
)
def test_name_stands_for_the_import_path_that_its_package_gives(
    console, offering, database, name, path
):
    console(*CREATE, "--param", "x=0.5", "--trainable", name)

    study = load(database, "mine")

    assert (study.trainable.kind, study.trainable.name) == ("import", path)
    check_trusted(study.trainable, study.uuid, load_keyring())
    assert study.trainable.workdir == str(offering)


@pytest.mark.row("D7")
def test_worker_runs_a_trainable_that_was_set_by_its_name(console, offering):
    console(*CREATE, "--param", "x=0.5", "--trainable", "digits")
    console("set", "mine", "trainable=quadratic")

    code, printed = run_studydb(
        ["worker", "--study", "mine"], cwd=offering, environment=dict(os.environ)
    )

    assert code == 0, printed
    assert "loss 0.25" in printed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digitz", "these names: dashed, digits, quadratic, twice, whole. Did you mean 'digits'?"),
        ("digitz", "is not an import path; write 'module:function'"),
        ("whole", "The entry point 'whole' names the module 'offering'"),
        (
            "dashed",
            "The package 'offering' offers the trainable 'dashed' as 'off-ering:train', which",
        ),
        ("twice", "Several packages offer a trainable 'twice': offering:train, other:train."),
    ],
)
@pytest.mark.usefixtures("offering")
def test_name_that_does_not_stand_for_exactly_one_function_is_refused(console, name, words):
    ran = console(*CREATE, "--param", "x=0.5", "--trainable", name, code=1)

    assert words in ran.error
    assert console("studies", "--format", "json").json == []
