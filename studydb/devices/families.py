"""The makers' variables that tell a process which accelerators it may use."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

_NUMBER_OR_UUID = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]{0,99}")
_NUMBER_OF_TILE = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})*")


class Family(Struct, frozen=True):
    """
    Devices whose visibility one variable controls.

    Attributes:
        variable: The variable with the visible devices, separated by commas.
        device_file: A file or folder that exists on hosts with such a device.
        nothing: The variable's value by which a process sees no device.
        entry: What a valid entry looks like. A runtime ignores the first invalid entry, such as
            "NoDevFiles" from Slurm, and all entries after it.
        kinds: The two kinds of entries, for an error message.
        example: Example lists of entries, for an error message.
    """

    variable: str
    device_file: str
    nothing: str
    entry: re.Pattern[str] = _NUMBER_OR_UUID
    kinds: tuple[str, str] = ("an index", "a UUID")
    example: str = "0,1 or GPU-8932f937,GPU-d0180485"

    def entries(self, value: str) -> tuple[str, ...]:
        """Return the distinct entries of the variable's value, up to the first invalid entry."""
        found: list[str] = []
        for entry in value.split(","):
            if not self.entry.fullmatch(entry.strip()):
                break
            found.append(entry.strip())
        return tuple(dict.fromkeys(found))


CUDA = Family("CUDA_VISIBLE_DEVICES", "/dev/nvidiactl", nothing="")

FAMILIES = (
    CUDA,
    Family("HIP_VISIBLE_DEVICES", "/dev/kfd", nothing="-1"),
    Family("ROCR_VISIBLE_DEVICES", "/dev/kfd", nothing="-1"),
    # `nothing` is not "": the specification gives an empty mask the meaning "all devices".
    Family(
        "ZE_AFFINITY_MASK",
        "/dev/dri",
        nothing="-1",
        entry=_NUMBER_OF_TILE,
        kinds=("an index", "a tile"),
        example="0,1 or 0.0,0.1",
    ),
)


def family_here(environ: Mapping[str, str] = os.environ) -> Family:
    """
    Choose the family of this host's devices.

    Slurm may set the variables of all makers, with the same entries. studydb must change only one
    of these variables. The entries of HIP_VISIBLE_DEVICES are indexes into the devices that
    ROCR_VISIBLE_DEVICES leaves visible. If studydb changed both variables, devices would be
    selected twice.

    Returns:
        The first family whose variable is set and whose device file exists; else the first whose
        variable is set; else the first whose device file exists; else CUDA.
    """
    named = [family for family in FAMILIES if family.variable in environ]
    present = [family for family in FAMILIES if Path(family.device_file).exists()]
    both = [family for family in named if family in present]
    return next(iter([*both, *named, *present]), CUDA)
