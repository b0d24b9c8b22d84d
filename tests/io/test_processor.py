"""What is known of this machine's processor."""

import pytest

from mtlprune.io import processor


@pytest.mark.parametrize(
    ("cpu_info", "is_fast"),
    [
        ("vendor_id : GenuineIntel\nflags : avx2", False),
        ("vendor_id : GenuineIntel\nflags : avx2 avx512_bf16", False),
        ("vendor_id : GenuineIntel\nflags : avx2 avx512_bf16 amx_bf16", True),
        ("vendor_id : AuthenticAMD\nflags : avx2 avx512_bf16", True),
        ("vendor_id : AuthenticAMD\nflags : avx2", False),
        (None, False),  # a system that describes no processor
    ],
)
def test_bf16_is_chosen_where_it_is_faster(cpu_info, is_fast, tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "_CPU_INFO", tmp_path / "cpuinfo")
    if cpu_info is not None:
        (tmp_path / "cpuinfo").write_text(cpu_info)
    assert processor.fast_in_bf16() == is_fast
    assert processor.has_amx() == ("amx" in (cpu_info or ""))
