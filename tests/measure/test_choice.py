"""Which kernel is used."""

import pytest

from undertow.errors import SettingError
from undertow.measure.kernels import available, choose


def test_the_fast_kernel_is_the_default_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDERTOW_KERNEL", raising=False)
    assert choose().name == ("native" if "native" in available() else "torch")
    assert choose("cuda").name == "torch"


@pytest.mark.parametrize("name", ["reference", "torch"])
def test_a_kernel_can_be_forced(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("UNDERTOW_KERNEL", name)
    assert choose().name == choose("cuda").name == name


def test_an_unknown_kernel_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERTOW_KERNEL", "fastest")
    with pytest.raises(SettingError, match=r"'fastest'.*reference, torch"):
        choose()


def test_without_the_c_extension_the_portable_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDERTOW_KERNEL", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "undertow.measure.kernels.native", None)
    assert "native" not in available()
    assert choose().name == "torch"
