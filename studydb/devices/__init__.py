"""The accelerators of this host, each of which one trial holds, and the memory of trials."""

from studydb.devices.grants import NO_DEVICES, DeviceGrant, Devices
from studydb.devices.memory_limits import MemoryLimit, MemoryLimits

__all__ = ["NO_DEVICES", "DeviceGrant", "Devices", "MemoryLimit", "MemoryLimits"]
