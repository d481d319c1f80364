"""Where tinygrad runs: an accelerator, and beside it the host, which is the CPU."""

import ctypes
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from ergometer.core.errors import UnavailableError
from ergometer.core.gpu import NVIDIA_DRIVER
from ergometer.core.probe import Probe
from ergometer.core.sensor import read_text, sysroot

_CPU = "CPU"  # tinygrad's own: one thread, compiled by clang
_CAPABILITY = 0x4000  # CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV
_AMPERE = 8  # the major number of that
# What brings OpenCL for the GPUs of a PCI vendor, in Debian and Ubuntu.
_DRIVERS = {"0x10de": "nvidia-opencl-icd", "0x1002": "mesa-opencl-icd", "0x8086": "intel-opencl-icd"}
_NO_CLANG = "tinygrad compiles with clang, which is not there"


def set_environment() -> None:
    """What tinygrad reads when it is imported: compile in this process, and do not cut kernels into parts."""
    os.environ |= {"PARALLEL": "0", "THREADS": "0", "CC": _clang()}


def set_threads(threads: int) -> None:
    """Of OpenCL on a CPU (PoCL), which reads it when it is opened."""
    os.environ |= dict.fromkeys(("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"), str(threads))


def find(device: str, *, alone: bool = False) -> tuple[str, str]:
    """What tinygrad calls the host and the accelerator.

    The accelerator is the first GPU of OpenCL, or else its CPU; the host is another CPU that OpenCL knows (which has
    threads), or else tinygrad's own. alone: no host is needed, so CUDA does not ask OpenCL for one.
    """
    if device == "cpu" or (alone and device == "cuda"):
        return _CPU, _CPU if device == "cpu" else "CUDA"
    gpus, cpus = _opencl_devices()
    listed = (gpus + cpus)[:1] if device == "opencl" else []
    host = next((cpu for cpu in cpus if cpu not in listed), None)
    host_name = _CPU if host is None else f"CL:{len(listed)}" if listed else "CL"
    _offer([*listed, *([] if host is None else [host])])
    return host_name, "CL" if device == "opencl" else "CUDA"


def check(names: Iterable[str]) -> None:
    """That what these devices need is there."""
    if _CPU in names and not shutil.which(_clang()):
        raise UnavailableError(f"{_NO_CLANG}: apt install clang, or pocl-opencl-icd as the host of an accelerator.")


def threaded(name: str) -> bool:
    """Whether it is a CPU with as many threads as were set."""
    return _is_opencl(name) and limits_of(name).cpu


def is_cpu(name: str) -> bool:
    return name == _CPU or threaded(name)


@dataclass(frozen=True)
class Limits:
    """Of a device that runs kernels in groups of threads. local: bytes of memory that a group shares; ampere: whether
    it is an NVIDIA GPU of that generation or later, which has room for deep tiles and multiplies in tf32."""

    cpu: bool = False
    threads: int = 1024
    local: int = 48 * 1024
    ampere: bool = False


@cache
def limits_of(name: str) -> Limits:
    from tinygrad import Device

    device = Device[name]
    if not _is_opencl(name):
        return Limits(ampere=name.startswith("CUDA") and int(device.arch.removeprefix("sm_")) >= 10 * _AMPERE)
    from tinygrad.runtime.autogen import opencl as cl

    def fact(which: int) -> int:
        number = ctypes.c_uint64()
        return number.value if cl.clGetDeviceInfo(device.cl_dev, which, 8, ctypes.byref(number), None) == 0 else 0

    nvidia = "cl_nv_device_attribute_query" in device.device_exts
    return Limits(
        cpu=bool(fact(cl.CL_DEVICE_TYPE) & cl.CL_DEVICE_TYPE_CPU),
        threads=fact(cl.CL_DEVICE_MAX_WORK_GROUP_SIZE),
        local=fact(cl.CL_DEVICE_LOCAL_MEM_SIZE),
        ampere=nvidia and fact(_CAPABILITY) >= _AMPERE,
    )


def get_kernel(name: str, program: Any) -> Any:
    """The compiled kernel; RuntimeError if the device cannot run its group of threads."""
    from tinygrad.engine.realize import get_runtime

    kernel = get_runtime(name, program)
    if _is_opencl(name):
        from tinygrad.runtime.autogen import opencl as cl

        most = ctypes.c_size_t()
        size = ctypes.sizeof(most)
        cl.clGetKernelWorkGroupInfo(
            kernel.kernel, kernel.dev.cl_dev, cl.CL_KERNEL_WORK_GROUP_SIZE, size, ctypes.byref(most), None
        )
        asked = math.prod(program.arg.local_size or ())
        if most.value and asked > most.value:
            raise RuntimeError(f"{program.arg.name} needs {asked} threads in a group, and {name} has {most.value}")
    return kernel


def copy(target: Any, source: Any) -> None:
    """From a buffer of one device to one of another, a CPU being one of them, and wait.

    The memory of a CPU that OpenCL knows is used where it lies: tinygrad goes through memory that is new in every copy,
    and the system hands that out page by page.
    """
    host = min(target, source, key=lambda buffer: (buffer.device != _CPU, not threaded(buffer.device)))
    with _memory_of(host) as memory:
        if host is target:
            source.allocator._copyout(memory, source._buf)
        else:
            target.allocator._copyin(target._buf, memory)
            target.allocator.dev.synchronize()


@contextmanager
def _memory_of(buffer: Any) -> Iterator[memoryview]:
    """Of a CPU, once the kernels before have written it."""
    if buffer.device == _CPU:
        yield buffer.as_memoryview(force_zero_copy=True)
        return
    from tinygrad.runtime.autogen import opencl as cl
    from tinygrad.runtime.ops_cl import check as check_status

    queue, status = buffer.allocator.dev.queue, ctypes.c_int32()
    how = cl.CL_MAP_READ | cl.CL_MAP_WRITE
    address = cl.clEnqueueMapBuffer(queue, buffer._buf, True, how, 0, buffer.nbytes, 0, None, None, status)
    check_status(status.value)
    try:
        yield memoryview((ctypes.c_uint8 * buffer.nbytes).from_address(address)).cast("B")
    finally:
        check_status(cl.clEnqueueUnmapMemObject(queue, buffer._buf, address, 0, None, None))


def probe(device: str, found: Probe) -> Probe:
    """found, unless the device lacks something."""
    return {"cpu": _probe_cpu, "opencl": _probe_opencl, "cuda": _probe_cuda}[device](found)


def _probe_cpu(found: Probe) -> Probe:
    return found if shutil.which(_clang()) else Probe(False, _NO_CLANG, "apt install clang")


def _probe_opencl(found: Probe) -> Probe:
    gpus, cpus = _opencl_devices()
    names = [_described(address) for address in (gpus[:1] + cpus)[:2]]
    if names:
        return Probe(True, f"{found.reason}; {' beside '.join(names)}")
    vendors = {read_text(path) for path in sysroot().glob("sys/class/drm/card*/device/vendor")}
    drivers = [_DRIVERS[vendor] for vendor in sorted(filter(None, vendors)) if vendor in _DRIVERS]
    gpu = f"for the GPU: apt install {' '.join(drivers)}" if drivers else "for a GPU: install its driver"
    remedy = f"{gpu}; for the CPU: apt install ocl-icd-libopencl1 pocl-opencl-icd"
    return Probe(False, "OpenCL has no device here", remedy)


def _probe_cuda(found: Probe) -> Probe:
    count = ctypes.c_int32()
    library = _library("libcuda.so.1")
    if library is None or library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return Probe(False, "there is no NVIDIA GPU with its driver", NVIDIA_DRIVER)
    if not _compiles_cuda():
        remedy = "apt install nvidia-cuda-toolkit, or set NVRTC_PATH to a libnvrtc.so that is here"
        return Probe(False, "tinygrad does not find NVRTC, which compiles for CUDA", remedy)
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGetName(name, 256, 0)
    library.cuDriverGetVersion(ctypes.byref(count))
    return Probe(True, f"{found.reason}; {name.value.decode()}, CUDA {count.value // 1000}.{count.value % 1000 // 10}")


def _compiles_cuda() -> bool:
    set_environment()
    from tinygrad.runtime.autogen import nvrtc

    major, minor = ctypes.c_int32(), ctypes.c_int32()
    try:
        return bool(nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0)
    except AttributeError:  # of a library that is not there
        return False


def _is_opencl(name: str) -> bool:
    return name.startswith("CL")


def _clang() -> str:
    chosen = os.environ.get("CC", "")
    return chosen if "clang" in chosen else "clang"


def _library(*names: str) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _opencl_devices() -> tuple[list[int], list[int]]:
    """The addresses of the GPUs (and what else is no CPU), and of the CPUs, of all platforms."""
    if _library("libOpenCL.so.1", "libOpenCL.so") is None:
        return [], []
    set_environment()
    from tinygrad.runtime.autogen import opencl as cl

    count = ctypes.c_uint32()
    try:
        cl.clGetPlatformIDs(0, None, count)
    except AttributeError:  # tinygrad looks in fewer folders than the linker
        return [], []
    platforms = (cl.cl_platform_id * count.value)()
    cl.clGetPlatformIDs(count.value, platforms, None)
    found: tuple[list[int], list[int]] = [], []
    for platform in platforms:
        gpu = cl.CL_DEVICE_TYPE_GPU | cl.CL_DEVICE_TYPE_ACCELERATOR
        for kinds, kept in zip((gpu, cl.CL_DEVICE_TYPE_CPU), found, strict=True):
            if cl.clGetDeviceIDs(platform, kinds, 0, None, count) == 0 and count.value:
                devices = (cl.cl_device_id * count.value)()
                cl.clGetDeviceIDs(platform, kinds, count, devices, None)
                kept += [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in devices]
    return found


def _described(address: int) -> str:
    """Name and driver of an OpenCL device."""
    from tinygrad.runtime.autogen import opencl as cl

    device, found = ctypes.cast(ctypes.c_void_p(address), cl.cl_device_id), []
    for fact in (cl.CL_DEVICE_NAME, cl.CL_DRIVER_VERSION):
        text = ctypes.create_string_buffer(256)
        cl.clGetDeviceInfo(device, fact, 256, text, None)
        found.append(text.value.decode(errors="replace").strip())
    return ", driver ".join(found)


def _offer(addresses: list[int]) -> None:
    """Name the OpenCL devices CL, CL:1 and so on: of several platforms, tinygrad would take the first alone."""
    from tinygrad.runtime.autogen import opencl as cl
    from tinygrad.runtime.ops_cl import CLDevice

    if addresses:
        named = (ctypes.cast(ctypes.c_void_p(address), cl.cl_device_id) for address in addresses)
        CLDevice.device_ids = (cl.cl_device_id * len(addresses))(*named)
