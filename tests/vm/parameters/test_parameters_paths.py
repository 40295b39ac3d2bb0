import os
import pathlib

import pytest

from sylvite.errors import FormatError, InvalidArgumentError
from sylvite.vm.parameters import parse_parameter_flag, resolve_parameter_path


@pytest.mark.parametrize(
    "relative", ["w.bin", "a/b/w.bin", "a\\b\\w.bin", "./w.bin", "..w", "a..b/c", "ü w.bin"]
)
def test_resolve_inside_the_folder_gives_the_path(tmp_path, relative):
    found = resolve_parameter_path(tmp_path, relative)
    assert found == tmp_path.resolve().joinpath(*relative.replace("\\", "/").split("/"))


@pytest.mark.parametrize(
    "relative",
    [
        "/etc/passwd",
        "\\etc\\passwd",
        "\\\\host\\share",
        "C:\\w.bin",
        "c:w.bin",
        "..",
        "../w.bin",
        "a/../../w.bin",
        "a/..",
        "..\\w.bin",
        "a\\..\\..\\w",
        "",
        ".",
        "a\0b",
        "\0",
    ],
)
def test_resolve_leaving_the_folder_is_refused(tmp_path, relative):
    with pytest.raises(FormatError, match="parameter path"):
        resolve_parameter_path(tmp_path, relative)


def test_resolve_link_out_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_text("x")
    (folder / "link").symlink_to("../secret")
    (folder / "up").symlink_to("..", target_is_directory=True)
    (folder / "inside").write_text("y")
    (folder / "good").symlink_to("inside")
    (folder / "loop").symlink_to("loop")
    for relative in ("link", "up/secret", "up", "up/model/../secret"):
        with pytest.raises(FormatError, match="parameter paths cannot leave their folder"):
            resolve_parameter_path(folder, relative)
    assert resolve_parameter_path(folder, "good") == (folder / "inside").resolve()
    with pytest.raises(FormatError, match="parameter path"):
        resolve_parameter_path(folder, "loop")


def test_resolve_through_a_linked_folder_is_fine(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real", target_is_directory=True)
    assert resolve_parameter_path(tmp_path / "alias", "w") == (tmp_path / "real" / "w").resolve()


@pytest.mark.parametrize(
    ("text", "scope", "path"),
    [
        ("w.irpa", "", "w.irpa"),
        ("model=w.irpa", "model", "w.irpa"),
        ("model=a=b.irpa", "model", "a=b.irpa"),
        ("dir/a=b.irpa", "", "dir/a=b.irpa"),
        ("=w.irpa", "", "w.irpa"),
    ],
)
def test_parameter_flag_splits_scope_and_path(text, scope, path):
    assert parse_parameter_flag(text) == (scope, pathlib.Path(path))


@pytest.mark.parametrize("text", ["", "model="])
def test_parameter_flag_without_path_is_refused(text):
    with pytest.raises(InvalidArgumentError):
        parse_parameter_flag(text)


def test_resolve_takes_any_path_like(tmp_path):
    assert resolve_parameter_path(os.fspath(tmp_path), "w").name == "w"
