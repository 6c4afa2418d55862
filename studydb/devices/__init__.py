"""The accelerators that trials hold, whole or in part, and the limits of trials' memory."""

from studydb.devices.grants import NO_DEVICES, DeviceGrant, Devices
from studydb.devices.memory_limits import MemoryLimit, MemoryLimits

__all__ = ["NO_DEVICES", "DeviceGrant", "Devices", "MemoryLimit", "MemoryLimits"]
