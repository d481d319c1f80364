"""Load and frequency of a Jetson's GPU, from sysfs (NVML does not answer there)."""

from ergometer.core.gpu import GpuFiles

_CHIPS = ("gpu", "gp10b", "gv11b", "ga10b")


class JetsonGpu(GpuFiles):
    name = "jetson_gpu"
    title = "GPU load and frequency of a Jetson (sysfs)"
    loads = (
        "sys/devices/gpu.0/load",
        "sys/devices/platform/gpu.0/load",
        "sys/devices/platform/*.gpu/load",
        "sys/devices/platform/*/*.gpu/load",
        *(f"sys/class/devfreq/*.{chip}/device/load" for chip in _CHIPS),
    )
    clocks = tuple(f"sys/class/devfreq/*.{chip}/cur_freq" for chip in _CHIPS)
    scale = 0.1
    otherwise = ("no Jetson GPU load file", "Jetson boards only")


SENSOR = JetsonGpu()
