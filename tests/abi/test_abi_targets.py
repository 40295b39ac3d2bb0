"""The table of targets, its groups, and a user's own targets."""

from __future__ import annotations

import json

import pytest

from sylvite import errors
from sylvite.abi.retarget import data_layout
from sylvite.abi.targets import GROUPS, TARGETS, find_target, load_targets_file, runner, select_targets


def test_table_holds_every_platform_of_the_design():
    assert len(TARGETS) >= 20
    families = {target.family for target in TARGETS.values()}
    assert families >= {
        "x86_64", "arm64", "armv7", "i386", "x32", "riscv64", "riscv32", "ppc64le", "s390x", "loongarch64",
        "mips64el", "wasm32", "wasm64",
    }  # fmt: skip
    assert len({target.triple for target in TARGETS.values()}) == len(TARGETS)


def test_groups_name_known_targets_only():
    assert set(GROUPS) >= {"all", "64-bit", "desktop", "mobile", "linux"}
    assert all(set(members) <= set(TARGETS) and members for members in GROUPS.values())


@pytest.mark.parametrize("name", list(TARGETS))
def test_data_layout_is_what_clang_states_and_fits_the_row(name):
    target = TARGETS[name]
    layout = data_layout(target)
    assert layout.startswith("E" if target.byte_order == "big" else "e")
    assert ("p:32:32" in layout) == (target.pointer_bits == 32)


def test_selection_expands_groups_once_and_in_order():
    names = [t.name for t in select_targets("arm64-linux,desktop,x86_64-generic")]
    assert names[0] == "arm64-linux"
    assert len(names) == len(set(names))
    assert "x86_64-linux" in names


def test_selection_of_an_unknown_name_lists_the_known_ones():
    with pytest.raises(errors.NotFoundError, match=r"vax.*x86_64-linux"):
        select_targets("vax")
    with pytest.raises(errors.InvalidArgumentError):
        select_targets("")


def test_targets_file_adds_a_target_like_another(tmp_path):
    path = tmp_path / "targets.json"
    path.write_text(json.dumps([{"name": "soft", "like": "riscv64-linux", "float_abi": "soft",
                                 "abi_name": "lp64", "flags": ["-march=rv64imac", "-mabi=lp64"],
                                 "groups": ["board"]}]))  # fmt: skip
    extra = load_targets_file(path)
    assert extra["soft"].triple == TARGETS["riscv64-linux"].triple
    assert [t.name for t in select_targets("board", extra)] == ["soft"]
    assert select_targets("all", extra)[-1].name == "soft"


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"name": "x"}]', '[{"like": "arm64", "colour": 1}]'])
def test_targets_file_malformed_raises_format_error(tmp_path, text):
    path = tmp_path / "targets.json"
    path.write_text(text)
    with pytest.raises(errors.FormatError):
        load_targets_file(path)


def test_runner_needs_qemu_for_foreign_targets_only():
    assert runner(find_target("wasm32")) is None
    assert runner(find_target("x86_64-windows-gnu")) is None
