"""Root directories of devices, as their kernels lay them out: fixtures for every sensor."""

from pathlib import Path

_STAT = "cpu  {a} 0 0 {b} 0 0 0 7 0 0\n" + "cpu0 {a} 0 0 {b} 0 0 0 0 0 0\ncpu1 {a} 0 0 {b} 0 0 0 0 0 0\nintr 1 2 3\n"

PROC = {
    "proc/stat": _STAT.format(a=100, b=300),
    "proc/self/schedstat": "1 2 3\n",
    "proc/self/statm": "10 5 1 1 0 1 0\n",
    "proc/meminfo": "MemTotal:        8000000 kB\nMemFree: 1 kB\n",
    "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 total=0\n",
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Test CPU\n",
}

JETSON_ORIN = PROC | {
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/name": "ina3221",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/in1_label": "VDD_IN",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/in1_input": "5000",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/curr1_input": "1200",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/in2_label": "VDD_CPU_GPU_CV",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/in2_input": "5000",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/curr2_input": "400",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/in3_label": "NC",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/in3_input": "0",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/curr3_input": "0",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/in7_label": "sum of shunt voltages",
    "sys/bus/i2c/devices/1-0040/hwmon/hwmon3/in7_input": "3",
    "sys/devices/platform/gpu.0/load": "735",
    "sys/class/devfreq/17000000.ga10b/cur_freq": "624750000",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
    "sys/class/thermal/thermal_zone0/temp": "48500",
    "sys/class/thermal/thermal_zone1/type": "gpu-thermal",
    "sys/class/thermal/thermal_zone1/temp": "46250",
    "sys/class/thermal/cooling_device0/type": "cpufreq-cpu0",
    "sys/class/thermal/cooling_device0/cur_state": "0",
    "sys/class/thermal/cooling_device1/type": "pwm-fan",
    "sys/class/thermal/cooling_device1/cur_state": "3",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "1510400",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "schedutil",
    "sys/devices/system/cpu/cpufreq/policy0/related_cpus": "0 1",
}

JETSON_TX2 = PROC | {
    "sys/bus/i2c/drivers/ina3221x/0-0041/iio:device1/rail_name_0": "VDD_IN",
    "sys/bus/i2c/drivers/ina3221x/0-0041/iio:device1/in_power0_input": "4321",
    "sys/bus/i2c/drivers/ina3221x/0-0041/iio:device1/rail_name_1": "VDD_SYS_CPU",
    "sys/bus/i2c/drivers/ina3221x/0-0041/iio:device1/in_power1_input": "1000",
    "sys/devices/gpu.0/load": "12",
}

JETSON_XAVIER = PROC | {  # no rail for the whole board: the parts are added
    "sys/bus/i2c/drivers/ina3221x/1-0040/iio:device0/rail_name_0": "GPU",
    "sys/bus/i2c/drivers/ina3221x/1-0040/iio:device0/in_power0_input": "2000",
    "sys/bus/i2c/drivers/ina3221x/1-0040/iio:device0/rail_name_1": "CPU",
    "sys/bus/i2c/drivers/ina3221x/1-0040/iio:device0/in_power1_input": "3000",
}

LAPTOP = PROC | {
    "sys/class/powercap/intel-rapl:0/name": "package-0",
    "sys/class/powercap/intel-rapl:0/energy_uj": "262143000000",
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850",
    "sys/class/powercap/intel-rapl:0:0/name": "core",
    "sys/class/powercap/intel-rapl:0:0/energy_uj": "1000000",
    "sys/class/powercap/intel-rapl:0:0/max_energy_range_uj": "262143328850",
    "sys/class/powercap/intel-rapl:0:1/name": "dram",
    "sys/class/powercap/intel-rapl:0:1/energy_uj": "500000",
    "sys/class/powercap/intel-rapl:0:1/max_energy_range_uj": "65712999613",
    "sys/class/powercap/intel-rapl-mmio:0/name": "package-0",
    "sys/class/powercap/intel-rapl-mmio:0/energy_uj": "262143000000",
    "sys/class/hwmon/hwmon0/name": "coretemp",
    "sys/class/hwmon/hwmon0/temp1_label": "Package id 0",
    "sys/class/hwmon/hwmon0/temp1_input": "61000",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "4",
    "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "9",
    "sys/class/power_supply/BAT0/type": "Battery",
    "sys/class/power_supply/BAT0/status": "Discharging",
    "sys/class/power_supply/BAT0/current_now": "1200000",
    "sys/class/power_supply/BAT0/voltage_now": "11500000",
}

PHONE = PROC | {  # on USB at its limit: the battery helps, and both must be added
    "sys/class/power_supply/battery/type": "Battery",
    "sys/class/power_supply/battery/status": "Discharging",
    "sys/class/power_supply/battery/current_now": "-450000",
    "sys/class/power_supply/battery/voltage_now": "4000000",
    "sys/class/power_supply/usb/type": "USB",
    "sys/class/power_supply/usb/online": "1",
    "sys/class/power_supply/usb/input_current_now": "500000",
    "sys/class/power_supply/usb/voltage_now": "4700000",
    "sys/class/kgsl/kgsl-3d0/gpubusy": " 250000 1000000",
    "sys/class/kgsl/kgsl-3d0/gpuclk": "585000000",
    "sys/devices/system/cpu/cpu0/cpu_capacity": "414",
    "sys/devices/system/cpu/cpu1/cpu_capacity": "1024",
}

MALI_PHONE = PROC | {
    "sys/class/misc/mali0/device/utilization": "37",
    "sys/class/misc/mali0/device/devfreq/13000000.mali/cur_freq": "848000000",
}

_RADEON = "sys/class/drm/card1/device"
_GRAPHICS = "sys/class/drm/card10/device"
AMD_DESKTOP = PROC | {  # a card, and the graphics of a processor
    f"{_RADEON}/gpu_busy_percent": "87",
    f"{_RADEON}/mem_info_vram_used": "4294967296",
    f"{_RADEON}/hwmon/hwmon3/name": "amdgpu",
    f"{_RADEON}/hwmon/hwmon3/power1_average": "212000000",
    f"{_RADEON}/hwmon/hwmon3/power1_cap": "300000000",
    f"{_RADEON}/hwmon/hwmon3/freq1_input": "2450000000",
    f"{_GRAPHICS}/gpu_busy_percent": "3",
    f"{_GRAPHICS}/hwmon/hwmon5/power1_input": "15000000",
    "sys/class/drm/card1-DP-1/status": "connected",
}

_VCGENCMD = """#!/bin/sh
case "$1" in
get_throttled) echo throttled=0x50005 ;;
pmic_read_adc) printf '3V7_WL_SW_A current(0)=0.10000000A\\n   VDD_CORE_A current(7)=2.00000000A\\n
 3V7_WL_SW_V volt(8)=3.70000000V\\n VDD_CORE_V volt(15)=0.80000000V\\n EXT5V_V volt(24)=5.10000000V\\n' ;;
esac
"""

RASPBERRY_PI_5 = PROC | {
    "usr/bin/vcgencmd": _VCGENCMD,
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
    "sys/class/thermal/thermal_zone0/temp": "55600",
}

TREES = {
    "jetson_orin": JETSON_ORIN,
    "jetson_tx2": JETSON_TX2,
    "jetson_xavier": JETSON_XAVIER,
    "amd_desktop": AMD_DESKTOP,
    "laptop": LAPTOP,
    "phone": PHONE,
    "mali_phone": MALI_PHONE,
    "raspberry_pi_5": RASPBERRY_PI_5,
}


def plant(root: Path, tree: dict[str, str]) -> Path:
    """Write the tree below root."""
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else text + "\n")
        if name.startswith("usr/bin/"):
            path.chmod(0o755)
    return root


def plant_over_real_proc(root: Path, tree: dict[str, str]) -> Path:
    """The tree's /sys with this machine's own /proc, so that a real process can be observed."""
    plant(root, {name: text for name, text in tree.items() if not name.startswith("proc/")})
    (root / "proc").symlink_to("/proc")
    return root
