"""Help, completion and recipes: what can be asked without pictures."""

import json
import resource
import subprocess
import sys
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from softbias.cli import COMMANDS, main
from softbias.cli.compare import ReproduceOptions, StudyOptions
from softbias.cli.fit import PretrainOptions, TrainingOptions
from softbias.cli.study_options import CompareOptions
from softbias.training.recipe import RECIPES, Recipe


def test_help_takes_less_than_half_a_second():
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run = subprocess.run([sys.executable, "-m", "softbias", "--help"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and all(name in run.stdout for name in COMMANDS) and "Shell completion" in run.stdout
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 0.5


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_needs_no_torch(command):
    words = [*command.split(), "--help"]
    code = f"import sys; from softbias.cli import main\nassert main({words}) == 0\nassert 'torch' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert f"usage: softbias {command}" in run.stdout


def test_the_help_of_fit_stays_readable(capsys):
    assert main(["fit", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "--weight-decay" not in printed and "--help-recipe" in printed and len(printed.splitlines()) < 90
    assert main(["fit", "--help-recipe"]) == 0
    printed = capsys.readouterr().out
    assert "--weight-decay" in printed and "--flip" in printed


@pytest.mark.parametrize(
    "shell", ["bash", pytest.param("zsh", marks=pytest.mark.slow), pytest.param("fish", marks=pytest.mark.slow)]
)
def test_completion_knows_commands_options_and_fields_of_recipes(shell, tmp_path, capsys):
    assert main(["--tyro-write-completion", shell, str(tmp_path / "script")]) == 0
    script = (tmp_path / "script").read_text()
    for word in ("--skip-broken", "--weight-decay", "--flip", "--threshold", "check", "cache"):
        assert word in script, word
    assert isinstance(Recipe(epochs=3).epochs, float)  # the recipe's own fields are as they were, so that 3 becomes 3.0
    assert main(["--tyro-print-completion", shell]) == 0
    assert "softbias" in capsys.readouterr().out


def test_completion_for_an_unknown_shell_is_refused(capsys):
    assert main(["--tyro-print-completion", "cmd"]) == 2
    assert "takes one of bash, zsh, fish" in capsys.readouterr().err


def test_recipes_are_listed_and_one_is_printed_in_full(capsys):
    assert main(["recipes"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in RECIPES)
    assert main(["recipes", "small"]) == 0
    printed = capsys.readouterr().out
    assert "--weight-decay" in printed and "CutMix" in printed and "largest norm of the gradient" in printed
    assert main(["recipes", "quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quick"]["batch_size"] == RECIPES["quick"].batch_size
    assert main(["recipes", "quik"]) == 2
    assert "did you mean 'quick'?" in capsys.readouterr().err


@pytest.mark.parametrize("options", [TrainingOptions, PretrainOptions, CompareOptions, StudyOptions, ReproduceOptions])
def test_the_choices_in_the_help_are_those_that_are_taken(options):
    for name, hint in get_type_hints(options, include_extras=True).items():
        kinds = [hint.__origin__, *get_args(hint.__origin__)] if hasattr(hint, "__metadata__") else []
        taken = [get_args(kind) for kind in kinds if get_origin(kind) is Literal]
        if taken:
            (metavar,) = [one.metavar for one in hint.__metadata__ if getattr(one, "metavar", None)]
            assert set(metavar.split("|")) == set(taken[0]), name
