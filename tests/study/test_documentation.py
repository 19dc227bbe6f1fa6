"""docs/studies.md shows a study that can be read."""

import re
from pathlib import Path

import yaml

from softbias.study.arms import arms_from
from softbias.study.spec import StudySpec

TEXT = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")


def test_the_file_in_the_document_is_a_study():
    (file,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    spec = StudySpec.from_dict(yaml.safe_load(file))
    assert [arm.name for arm in spec.arms] == ["deit_nano@patch_size=8", "ConViT", "probed"] and spec.seeds == (0, 1, 2)


def test_the_arms_in_the_document_can_be_read():
    arms = re.findall(r"^\| `([^`]*@[^`]*)` \|", TEXT, re.MULTILINE)
    assert len(arms) == 7 and all(arms_from(arm) for arm in arms)
