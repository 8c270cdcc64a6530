"""The C kernel. Optional: without a compiler Undertow installs and uses its portable kernel."""

from pathlib import Path

from setuptools import Extension, setup

KERNELS = "src/undertow/measure/kernels"

setup(
    ext_modules=[
        Extension(
            "undertow.measure.kernels._native",
            sources=[f"{KERNELS}/_native.c"],
            depends=sorted(path.as_posix() for path in Path(KERNELS).glob("_native_*.h")),
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            # Instruction sets are chosen at run time inside the kernel, never by the machine that builds it.
            # The vector types never cross a function call, so a warning about how they would be passed is noise.
            # Floats are read as bits in many places: no assumption that they cannot be.
            extra_compile_args=[
                "-O3",
                "-std=c11",
                "-fno-math-errno",
                "-ffp-contract=fast",
                "-fno-strict-aliasing",
                "-pthread",
                "-Wno-psabi",
                "-g0",  # Python's own flags ask for debug information: three times the size of the code
            ],
            libraries=["m"],
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
