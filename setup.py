"""The C kernel. Optional: without a compiler Undertow installs and uses its portable kernel."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "undertow.measure.kernels._native",
            sources=["src/undertow/measure/kernels/_native.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O3", "-std=c11", "-fno-math-errno", "-pthread"],
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
