"""GPUs as a person asks for them, and what a site has of them."""

from __future__ import annotations

import pytest

from tidemill.model.devices import devices_text, fault_of, merged, parse_gpus, with_shares
from tidemill.model.job import JobSpec, Resources
from tidemill.model.legal import spec_fault


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        *[("0", {}), ("1", {"gpu": 1}), ("2.0", {"gpu": 2}), ("0.25", {"gpu_percent": 25})],
        *[("0.07", {"gpu_percent": 7}), ("0.29", {"gpu_percent": 29}), (".5", {"gpu_percent": 50})],
    ],
)
def test_a_number_of_gpus_is_whole_ones_or_a_share_of_one(text: str, devices: dict[str, int]) -> None:
    assert parse_gpus(text) == devices


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "0.001", "nan", "inf", "1e9", "0,5"])
def test_what_is_no_number_of_gpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"GPU|number"):
        parse_gpus(text)


def test_a_job_has_the_word_on_gpus_over_its_application() -> None:
    assert merged({"gpu_percent": 25}, {"gpu": 1, "fpga": 1}) == {"gpu_percent": 25, "fpga": 1}
    assert merged({"gpu": 0}, {"gpu_percent": 50}) == {}
    assert merged(None, {"gpu": 1}) == {"gpu": 1}


def test_a_share_is_of_one_gpu_and_not_beside_whole_ones() -> None:
    assert fault_of({"gpu_percent": 100}) is None
    assert "legal is 0 to 100" in str(fault_of({"gpu_percent": 101}))
    assert "whole GPUs, or a share" in str(fault_of({"gpu_percent": 5, "gpu": 1}))
    spec = JobSpec(command=["/bin/true"], resources=Resources(devices={"gpu_percent": 101}))
    assert spec_fault(spec) is not None


def test_nodes_with_gpus_have_shares_of_one() -> None:
    assert with_shares({"gpu": 4}) == {"gpu": 4, "gpu_percent": 100}
    assert with_shares({}) == {}
    assert "gpu_percent" not in with_shares({"fpga": 1})


def test_devices_are_said_in_words() -> None:
    assert devices_text({"gpu": 1}) == "1 GPU"
    assert devices_text({"gpu": 4, "gpu_percent": 100}) == "4 GPUs"
    assert devices_text({"gpu_percent": 25, "fpga": 2}) == "2 fpga, 0.25 of a GPU"
    assert devices_text({}) == "no GPU"
