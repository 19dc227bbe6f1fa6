"""The names of `softbias`: one table at run time, and the same for type checkers."""

import ast
import importlib
from pathlib import Path

import pytest

import softbias


def test_type_checkers_see_the_table_that_is_used_at_run_time():
    tree = ast.parse(Path(softbias.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname: node.module for node in block.body for alias in node.names}
    assert typed == softbias.MODULES and sorted(softbias.__all__) == sorted([*typed, "__version__"])


@pytest.mark.parametrize("name", sorted(softbias.MODULES))
def test_a_public_name_is_that_of_its_module(name):
    assert getattr(softbias, name) is getattr(importlib.import_module(softbias.MODULES[name]), name)
    assert name in dir(softbias)


def test_a_name_that_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="creat_model"):
        softbias.creat_model  # noqa: B018


def test_no_two_classes_of_attention_and_models_have_the_same_name():
    found = [
        node.name
        for folder in ("attention", "models")
        for path in (Path(softbias.__file__).parent / folder).glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    assert len(found) == len(set(found))
